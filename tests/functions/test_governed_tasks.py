"""The function that makes policy and quotas of task governance, against SageMaker's own API shapes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.stub import Stubber

from functions.task_governance import index

ID = "abcdefghij12"
START = 1_000_000.0
CLUSTER_ARN = "arn:aws:sagemaker:us-west-2:123456789012:cluster/cluster12345"
QUOTA = {
    "Name": "esm2-eks-proteins",
    "ClusterArn": CLUSTER_ARN,
    "ActivationState": "Enabled",
    "ComputeQuotaTarget": {"TeamName": "proteins", "FairShareWeight": 75},
    "ComputeQuotaConfig": {
        "ComputeQuotaResources": [{"InstanceType": "ml.g5.8xlarge", "Count": 2}],
        "ResourceSharingConfig": {"Strategy": "LendAndBorrow", "BorrowLimit": 50},
        "PreemptTeamTasks": "LowerPriority",
    },
    "Tags": [{"Key": "project", "Value": "hyperpod-esm2"}],
}
POLICY = {
    "Name": "esm2-eks",
    "ClusterArn": CLUSTER_ARN,
    "SchedulerConfig": {
        "PriorityClasses": [{"Name": "urgent", "Weight": 100}],
        "FairShare": "Enabled",
        "IdleResourceSharing": "Enabled",
    },
    "Tags": [{"Key": "project", "Value": "hyperpod-esm2"}],
}
NAMES = {"ComputeQuota": "compute_quota", "ClusterSchedulerConfig": "cluster_scheduler_config"}
REQUESTS = {"ComputeQuota": QUOTA, "ClusterSchedulerConfig": POLICY}
KINDS = pytest.mark.parametrize("kind", NAMES)


def arn_of(kind: str) -> str:
    resource = NAMES[kind].replace("_", "-")
    return f"arn:aws:sagemaker:us-west-2:123456789012:{resource}/{ID}"


def event(
    kind: str, type_: str, *, old: dict[str, Any] | None = None, version: int = 1
) -> dict[str, Any]:
    """Return the framework's event, both to start and to query completion."""

    def properties(request: dict[str, Any]) -> dict[str, str]:
        return {"Kind": kind, "Request": json.dumps(request), "TimeoutSeconds": "3000"}

    return {
        "RequestType": type_,
        "ResourceProperties": properties(REQUESTS[kind]),
        "PhysicalResourceId": ID,
        **({"OldResourceProperties": properties(old)} if old else {}),
        "Data": {"Start": START, "Version": version},
    }


def described(sagemaker: Stubber, kind: str, status: str, *, version: int = 1, **more: Any) -> None:
    answer = {
        f"{kind}Arn": arn_of(kind),
        f"{kind}Id": ID,
        f"{kind}Version": version,
        "Name": "any",
        "Status": status,
        "CreationTime": datetime(2026, 1, 1, tzinfo=UTC),
        **({"ComputeQuotaTarget": {"TeamName": "proteins"}} if kind == "ComputeQuota" else {}),
        **more,
    }
    sagemaker.add_response(f"describe_{NAMES[kind]}", answer, {f"{kind}Id": ID})


def tagged(sagemaker: Stubber, kind: str, **tags: str) -> None:
    present = [{"Key": key, "Value": value} for key, value in tags.items()]
    sagemaker.add_response("list_tags", {"Tags": present}, {"ResourceArn": arn_of(kind)})


def updated(sagemaker: Stubber, kind: str, *, target: int) -> None:
    fixed = ("Name", "ClusterArn", "Tags")
    asked = {key: value for key, value in REQUESTS[kind].items() if key not in fixed}
    answer = {f"{kind}Arn": arn_of(kind), f"{kind}Version": target + 1}
    sagemaker.add_response(
        f"update_{NAMES[kind]}", answer, {f"{kind}Id": ID, "TargetVersion": target, **asked}
    )


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.time, "time", lambda: START + 60)


@KINDS
def test_new_objects_are_created_as_requested(kind: str, sagemaker: Stubber) -> None:
    answer = {f"{kind}Arn": arn_of(kind), f"{kind}Id": ID}
    sagemaker.add_response(f"create_{NAMES[kind]}", answer, REQUESTS[kind])
    made = index.on_event(event(kind, "Create"), None)
    assert made == {"PhysicalResourceId": ID, "Data": {"Start": START + 60, "Version": 1}}


@pytest.mark.parametrize("lending", ["Enabled", "Disabled"])
def test_an_old_boto3_gets_no_field_that_it_rejects(
    lending: str, sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = sagemaker.client.meta.service_model
    shape = model.shape_for("SchedulerConfig")
    known = {name: found for name, found in shape.members.items() if name != index.LENDING}
    monkeypatch.setattr(model, "shape_for", lambda name: SimpleNamespace(members=known))
    scheduler = {**POLICY["SchedulerConfig"], "IdleResourceSharing": lending}
    monkeypatch.setitem(
        REQUESTS, "ClusterSchedulerConfig", {**POLICY, "SchedulerConfig": scheduler}
    )
    kind = "ClusterSchedulerConfig"
    if lending == "Disabled":
        with pytest.raises(RuntimeError, match="lend_unallocated to true"):
            index.on_event(event(kind, "Create"), None)
        return
    rest = {name: value for name, value in scheduler.items() if name != "IdleResourceSharing"}
    answer = {f"{kind}Arn": arn_of(kind), f"{kind}Id": ID}
    sagemaker.add_response(f"create_{NAMES[kind]}", answer, {**POLICY, "SchedulerConfig": rest})
    assert index.on_event(event(kind, "Create"), None)["PhysicalResourceId"] == ID


@KINDS
def test_a_change_is_of_the_version_that_is_there(kind: str, sagemaker: Stubber) -> None:
    described(sagemaker, kind, "Updated", version=4)
    tagged(sagemaker, kind, project="hyperpod-esm2")
    updated(sagemaker, kind, target=4)
    changed = index.on_event(
        event(kind, "Update", old=REQUESTS[kind] | {"ActivationState": "Disabled"}), None
    )
    assert changed["PhysicalResourceId"] == ID
    assert changed["Data"]["Version"] == 5


def test_tags_are_changed_and_others_are_left(sagemaker: Stubber) -> None:
    kind = "ComputeQuota"
    described(sagemaker, kind, "Created")
    tagged(sagemaker, kind, project="another", old="x", **{"aws:cloudformation:stack-name": "x"})
    asked = {"ResourceArn": arn_of(kind), "TagKeys": ["old"]}
    sagemaker.add_response("delete_tags", {}, asked)
    sagemaker.add_response("add_tags", {}, {"ResourceArn": arn_of(kind), "Tags": QUOTA["Tags"]})
    updated(sagemaker, kind, target=1)
    index.on_event(event(kind, "Update", old=QUOTA | {"Tags": []}), None)


@pytest.mark.parametrize(
    "old",
    [
        QUOTA | {"Name": "another"},
        QUOTA | {"ClusterArn": f"{CLUSTER_ARN[:-1]}6"},
        QUOTA | {"ComputeQuotaTarget": {"TeamName": "another"}},
    ],
)
def test_what_cannot_be_changed_is_made_anew(old: dict[str, Any], sagemaker: Stubber) -> None:
    """Another id makes CloudFormation delete the old object."""
    answer = {"ComputeQuotaArn": arn_of("ComputeQuota"), "ComputeQuotaId": "anotherone12"}
    sagemaker.add_response("create_compute_quota", answer, QUOTA)
    made = index.on_event(event("ComputeQuota", "Update", old=old), None)
    assert made["PhysicalResourceId"] == "anotherone12"


@KINDS
@pytest.mark.parametrize("there", [True, False])
def test_what_is_gone_already_can_be_deleted_too(
    kind: str, there: bool, sagemaker: Stubber
) -> None:
    if there:
        sagemaker.add_response(f"delete_{NAMES[kind]}", {}, {f"{kind}Id": ID})
    else:
        sagemaker.add_client_error(f"delete_{NAMES[kind]}", "ResourceNotFound")
    assert index.on_event(event(kind, "Delete"), None)["PhysicalResourceId"] == ID


@pytest.mark.parametrize(
    ("type_", "status", "version", "complete"),
    [
        ("Create", "Creating", 1, False),
        ("Create", "Created", 1, True),
        # Until the service knows of the change it tells of the state before.
        ("Update", "Created", 1, False),
        ("Update", "Updating", 2, False),
        ("Update", "Updated", 2, True),
        ("Delete", "Created", 1, False),
        ("Delete", "Deleting", 1, False),
        ("Delete", "Deleted", 1, True),
    ],
)
@KINDS
def test_it_is_waited_for(
    kind: str, type_: str, status: str, version: int, complete: bool, sagemaker: Stubber
) -> None:
    described(sagemaker, kind, status, version=version)
    asked = event(kind, type_, old=REQUESTS[kind], version=2 if type_ == "Update" else 1)
    assert index.is_complete(asked, None) == {"IsComplete": complete}


@KINDS
def test_a_deletion_ends_when_there_is_nothing(kind: str, sagemaker: Stubber) -> None:
    sagemaker.add_client_error(f"describe_{NAMES[kind]}", "ResourceNotFound")
    assert index.is_complete(event(kind, "Delete"), None) == {"IsComplete": True}


def test_what_vanishes_while_it_is_made_is_no_success(sagemaker: Stubber) -> None:
    sagemaker.add_client_error("describe_compute_quota", "ResourceNotFound")
    with pytest.raises(
        RuntimeError, match=f"ComputeQuota {ID} was deleted by someone else; deploy again"
    ):
        index.is_complete(event("ComputeQuota", "Create"), None)


@pytest.mark.parametrize(
    ("type_", "status"),
    [("Create", "CreateFailed"), ("Update", "UpdateRollbackFailed"), ("Delete", "DeleteFailed")],
)
def test_reports_the_service_s_reason(type_: str, status: str, sagemaker: Stubber) -> None:
    described(sagemaker, "ComputeQuota", status, FailureReason="Kueue is not installed")
    with pytest.raises(
        RuntimeError, match=f"ComputeQuota {ID} has status {status}: Kueue is not installed"
    ):
        index.is_complete(event("ComputeQuota", type_), None)


def test_it_is_not_waited_for_without_end(
    sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index.time, "time", lambda: START + 3000)
    described(sagemaker, "ComputeQuota", "Creating")
    with pytest.raises(
        TimeoutError, match=f"after 50 minutes ComputeQuota {ID} has status Creating"
    ):
        index.is_complete(event("ComputeQuota", "Create"), None)


def test_what_the_service_refuses_fails_with_its_words(sagemaker: Stubber) -> None:
    sagemaker.add_client_error(
        "create_cluster_scheduler_config", "ConflictException", "the cluster has a policy already"
    )
    with pytest.raises(Exception, match="the cluster has a policy already"):
        index.on_event(event("ClusterSchedulerConfig", "Create"), None)
