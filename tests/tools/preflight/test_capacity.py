"""Preflight checks of zones, offers of types, training plans, images and keys."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from config.cluster import RollingUpdate, zone_ids
from config.facts.endpoint_services import endpoint_services, whole_name
from config.facts.known_bad import AWS_OFI_NCCL, known_fault
from config.slurm_cluster import MARIADB_VERSION, AccountingDatabase, SlurmCluster
from tests.tools.accounts import (
    OTHER_ZONE,
    PLAN_ARN,
    empty_account,
    orderable_databases,
    training_plan,
)
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped, with_group
from tests.tools.preflight.report import findings, problems
from tools.preflight import machine_images
from tools.preflight.read_only_aws import ReadOnlyAws

SLURM = shipped("slurm")
P5 = shipped("slurm-p5")
REPOSITORY = Path(__file__).parents[3]
PLAN = "training plan esm2-p5"
NOW = datetime.now(UTC)


def with_plan(
    answer: dict[str, Any] | Refusal, cluster: SlurmCluster = P5
) -> list[tuple[str, str, str]]:
    aws = empty_account(cluster)
    aws.answer("sagemaker", "DescribeTrainingPlan", answer)
    return [problem for problem in problems(aws, cluster) if problem[1] == PLAN]


def with_offered_endpoints(
    offered: dict[str, list[str]], **changes: Any
) -> list[tuple[str, str, str]]:
    """Problems of the P5 cluster's endpoints, if services by full name are offered in these zones."""
    cluster = P5.model_copy(update={"network": P5.network.model_copy(update=changes)})
    aws = empty_account(cluster)

    def answer(parameters: Parameters) -> dict[str, Any]:
        (names,) = parameters["Filters"]
        zones = {name: offered.get(name, zone_ids(P5)) for name in names["Values"]}
        found = [
            {"ServiceName": name, "AvailabilityZoneIds": zones[name]}
            for name in zones
            if zones[name]
        ]
        return {"ServiceDetails": found}

    aws.answer("ec2", "DescribeVpcEndpointServices", answer)
    return [problem for problem in problems(aws, cluster) if problem[1].startswith("endpoint ")]


def test_endpoints_are_in_zones_of_their_services() -> None:
    first, second = zone_ids(P5)
    fsx, aps = (f"com.amazonaws.{P5.region}.{name}" for name in ("fsx", "aps-workspaces"))
    assert with_offered_endpoints({}) == []
    assert with_offered_endpoints({fsx: [second]}, endpoint_zones={"fsx": second}) == []
    assert with_offered_endpoints({fsx: [second], aps: []}) == [
        ("FAIL", "endpoint fsx", f"{fsx} is offered in {second}, not in {first}"),
        ("FAIL", "endpoint aps-workspaces", f"{P5.region} has no endpoint service {aps}"),
    ]
    assert with_offered_endpoints({fsx: [second]}, interface_endpoints=False) == []


def test_the_remedy_names_a_zone_of_the_network_if_one_has_the_service() -> None:
    first, second = zone_ids(P5)
    fsx = f"com.amazonaws.{P5.region}.fsx"
    for zones, action in (
        ([OTHER_ZONE[P5.region], second], f"set network.endpoint_zones to {{fsx: {second}}}"),
        (
            [OTHER_ZONE[P5.region]],
            "add a zone of these to the network, and set network.endpoint_zones to ",
        ),
    ):
        aws = empty_account(P5)
        details = [
            {"ServiceName": name, "AvailabilityZoneIds": zones if name == fsx else [first]}
            for name in (
                whole_name(service, P5.region) for service in endpoint_services(P5).values()
            )
        ]
        aws.answer("ec2", "DescribeVpcEndpointServices", {"ServiceDetails": details})
        (found,) = [finding for finding in findings(aws, P5) if finding.subject == "endpoint fsx"]
        assert found.action.startswith(action)


def reserved(**changes: Any) -> list[dict[str, Any]]:
    return [training_plan()["ReservedCapacitySummaries"][0] | changes]


def test_accepts_a_suitable_plan() -> None:
    aws = empty_account(P5)
    assert problems(aws, P5) == []
    messages = [finding.message for finding in findings(aws, P5) if finding.subject == PLAN]
    assert messages[0].startswith("active until ")
    assert messages[1] == "8 instances requested, 8 of 8 are free"


@pytest.mark.parametrize(
    ("changes", "level", "message"),
    [
        ({"Status": "Expired"}, "FAIL", "expired (no reason given)"),
        (
            {"Status": "Failed", "StatusMessage": "payment refused"},
            "FAIL",
            "failed (payment refused)",
        ),
        ({"Status": "Pending"}, "WARN", "not paid for"),
        (
            {"Status": "Scheduled", "StartTime": datetime(2026, 12, 1, 11, 30, tzinfo=UTC)},
            "WARN",
            "2026-12-01 11:30",
        ),
        ({"EndTime": NOW + timedelta(hours=30)}, "WARN", "ends "),
        ({"TargetResources": ["training-job"]}, "FAIL", "bought for training-job"),
        (
            {"TotalInstanceCount": 4, "AvailableInstanceCount": 4},
            "FAIL",
            "8 instances requested of 4",
        ),
        ({"AvailableInstanceCount": 2}, "WARN", "8 instances requested, 2 of 8 are free"),
        ({"TrainingPlanArn": PLAN_ARN.replace("us-east-1", "us-west-2")}, "FAIL", "the file names"),
        (
            {"ReservedCapacitySummaries": reserved(InstanceType="ml.p5e.48xlarge")},
            "FAIL",
            "reserves ml.p5e.48xlarge, group p5 is ml.p5.48xlarge",
        ),
        (
            {
                "ReservedCapacitySummaries": [
                    {
                        key: value
                        for key, value in reserved()[0].items()
                        if key != "AvailabilityZoneId"
                    }
                ]
            },
            "WARN",
            "it has no zone for its ml.p5.48xlarge; group p5 is in use1-az6",
        ),
        (
            {"ReservedCapacitySummaries": reserved(AvailabilityZoneId="use1-az4")},
            "FAIL",
            "its capacity is in use1-az4, group p5 is in use1-az6",
        ),
    ],
)
def test_reports_an_unsuitable_plan(changes: dict[str, Any], level: str, message: str) -> None:
    ((found_level, _, found_message),) = with_plan(training_plan(**changes))
    assert found_level == level
    assert message in found_message


def test_reports_a_missing_plan() -> None:
    ((level, _, message),) = with_plan(Refusal("ResourceNotFound"))
    assert (level, message) == ("FAIL", "there is no such plan in this account and us-east-1")


def test_groups_share_the_instances_of_their_plan() -> None:
    (group,) = [group for group in P5.instance_groups if group.training_plan_arn]
    second = group.model_copy(update={"name": "p5-more", "num_instances": 1})
    cluster = P5.model_copy(update={"instance_groups": [*P5.instance_groups, second]})
    ((level, _, message),) = with_plan(training_plan(), cluster)
    assert (level, message) == ("FAIL", "9 instances requested of 8")


def only_in(aws: AnsweringAws, zone: str) -> None:
    offers = [
        {"InstanceType": name, "Location": zone, "LocationType": "availability-zone-id"}
        for name in ("m5.large", "g5.8xlarge")
    ]
    aws.answer("ec2", "DescribeInstanceTypeOfferings", {"InstanceTypeOfferings": offers})


def test_a_type_missing_from_the_zone_names_zones_that_have_it() -> None:
    aws = empty_account(SLURM)
    only_in(aws, OTHER_ZONE["us-west-2"])
    found = [problem for problem in problems(aws, SLURM) if problem[0] == "FAIL"]
    assert [subject for _, subject, _ in found] == ["offer controller", "offer workers"]
    asked = zone_ids(SLURM)[0]
    assert found[1][2] == f"ml.g5.8xlarge is not offered in {asked}; it is offered in usw2-az9"


def test_uses_the_group_s_own_zone() -> None:
    aws = empty_account(SLURM)
    only_in(aws, OTHER_ZONE["us-west-2"])
    cluster = with_group(SLURM, "workers", availability_zone_id=OTHER_ZONE["us-west-2"])
    assert [subject for _, subject, _ in problems(aws, cluster)] == ["offer controller"]


def test_a_type_without_a_list_price_needs_a_plan_or_an_offer_of_aws() -> None:
    cluster = with_group(SLURM, "workers", instance_type="ml.p5e.48xlarge", ebs_gib=500)
    found = [
        problem for problem in problems(empty_account(cluster), cluster) if "offer" in problem[1]
    ]
    zone = zone_ids(SLURM)[0]
    message = (
        f"ml.p5e.48xlarge is offered in {zone}, but HyperPod's price list has none in us-west-2"
    )
    assert found == [("WARN", "offer workers", message)]
    planned = with_group(cluster, "workers", training_plan_arn=PLAN_ARN)
    assert not [
        problem for problem in problems(empty_account(planned), planned) if "offer" in problem[1]
    ]


@pytest.mark.parametrize(
    ("zones", "multi_az", "level"),
    [("abc", True, "OK"), ("a", False, "OK"), ("a", True, "FAIL"), ("", False, "FAIL")],
)
def test_rds_offers_the_class_of_the_database(zones: str, multi_az: bool, level: str) -> None:
    database = AccountingDatabase(instance_class="db.m8a.large", multi_az=multi_az)
    network = SLURM.network.model_copy(
        update={"availability_zone_ids": ["usw2-az2", OTHER_ZONE["us-west-2"]]}
    )
    cluster = SLURM.model_copy(update={"accounting_database": database, "network": network})
    aws = empty_account(cluster)
    aws.answer("rds", "DescribeOrderableDBInstanceOptions", orderable_databases("us-west-2", zones))
    (found,) = [found for found in findings(aws, cluster) if found.subject == "database"]
    assert found.level == level
    assert f"db.m8a.large with MariaDB {MARIADB_VERSION}" in found.message


def test_a_training_plan_takes_precedence_over_offers() -> None:
    aws = empty_account(P5)
    offers = [
        {"InstanceType": name, "Location": "use1-az6", "LocationType": "availability-zone-id"}
        for name in ("m5.large",)
    ]
    aws.answer("ec2", "DescribeInstanceTypeOfferings", {"InstanceTypeOfferings": offers})
    ((level, subject, message),) = problems(aws, P5)
    assert (level, subject) == ("WARN", "offer p5")
    assert "no zone of us-east-1" in message


@pytest.mark.parametrize(("digest", "levels"), [(None, ["WARN"]), ("sha256:0123", [])])
def test_trainium_without_an_image_bills_for_nothing(
    digest: str | None, levels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = tmp_path / "versions.json"
    versions.write_text(json.dumps({"base": {"digest": digest}}))
    monkeypatch.setattr(machine_images, "NEURON_VERSIONS", versions)
    trainium = shipped("slurm-trn1")
    aws = ReadOnlyAws(empty_account(SLURM).session)
    found = machine_images.check_neuron_base(aws, trainium)
    assert [finding.level for finding in found] == levels
    assert not list(machine_images.check_neuron_base(aws, SLURM))


def test_reports_missing_and_impaired_zones() -> None:
    aws = empty_account(P5)
    zones = [
        {"ZoneId": "use1-az6", "ZoneName": "us-east-1a", "State": "impaired"},
        {"ZoneId": "use1-az1", "ZoneName": "us-east-1b", "State": "available"},
    ]
    aws.answer("ec2", "DescribeAvailabilityZones", {"AvailabilityZones": zones})
    assert problems(aws, P5) == [
        ("WARN", "zone use1-az6", "state impaired"),
        ("FAIL", "zone use1-az4", "this account has no such zone in us-east-1"),
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"Images": [{"State": "available", "Architecture": "x86_64"}]}, None),
        (
            {"Images": [{"State": "available", "Architecture": "arm64"}]},
            "it is arm64, ml.g5.8xlarge is x86_64",
        ),
        ({"Images": [{"State": "pending", "Architecture": "x86_64"}]}, "its state is pending"),
        ({"Images": []}, "does not exist, or is not shared with this account"),
        (
            Refusal("InvalidAMIID.NotFound", "The image does not exist"),
            "was not found in us-west-2",
        ),
    ],
)
def test_images(answer: Any, message: str | None) -> None:
    cluster = with_group(SLURM, "workers", image_id="ami-0123456789abcdef0")
    aws = empty_account(cluster)
    aws.answer("ec2", "DescribeImages", answer)
    found = problems(aws, cluster)
    assert len(found) == (message is not None)
    assert all(
        message in text and subject == "image ami-0123456789abcdef0"
        for _, subject, text in found
        if message
    )


@pytest.mark.parametrize(
    ("description", "instance_type", "fault"),
    [
        (
            "HyperPod Slurm 25.11.1, pyxis 0.20.0",
            "ml.g5.8xlarge",
            "Slurm 25.11.1, which ends in a loop",
        ),
        ("HyperPod Slurm 25.11.1", "ml.m5.4xlarge", None),
        ("HyperPod Slurm 25.11.5, NVIDIA driver 580.173.02", "ml.p6e-gb200.36xlarge", None),
        (
            "NVIDIA driver version 595.71.05",
            "ml.p6e-gb200.36xlarge",
            "NVIDIA driver 595.71.05, which",
        ),
        ("NVIDIA driver version 595.71.05", "ml.p5.48xlarge", None),
        ("aws-ofi-nccl 1.18.0", "ml.p5.48xlarge", "hangs in large broadcasts"),
        ("", "ml.p5.48xlarge", None),
    ],
)
def test_an_image_with_software_that_is_known_to_be_bad(
    description: str, instance_type: str, fault: str | None
) -> None:
    cluster = with_group(
        SLURM, "workers", image_id="ami-0123456789abcdef0", instance_type=instance_type
    )
    aws = empty_account(cluster)
    image = {"State": "available", "Architecture": "x86_64", "Description": description}
    if instance_type.startswith("ml.p6e"):
        image["Architecture"] = "arm64"
    aws.answer("ec2", "DescribeImages", {"Images": [image]})
    found = machine_images.check_images(ReadOnlyAws(aws.session), cluster)
    warnings = [finding.message for finding in found if finding.level != "OK"]
    assert [fault in text for text in warnings if fault] == [True] * (fault is not None)
    assert len(warnings) == (fault is not None)


def test_alarms_of_updates_exist_and_are_not_raised() -> None:
    batches = RollingUpdate(max_nodes=1, rollback_alarms=["gone", "raised", "silent"])
    cluster = with_group(SLURM, "workers", rolling_update=batches)
    aws = empty_account(cluster)
    alarms = {
        "MetricAlarms": [{"AlarmName": "silent", "StateValue": "OK"}],
        "CompositeAlarms": [{"AlarmName": "raised", "StateValue": "ALARM"}],
    }
    aws.answer("cloudwatch", "DescribeAlarms", alarms)
    found = machine_images.check_rollback_alarms(ReadOnlyAws(aws.session), cluster)
    assert [(finding.level, finding.subject) for finding in found] == [
        ("FAIL", "rollback alarm gone"),
        ("WARN", "rollback alarm raised"),
        ("OK", "rollback alarm silent"),
    ]
    without = empty_account(SLURM)
    assert not list(machine_images.check_rollback_alarms(ReadOnlyAws(without.session), SLURM))


def test_the_projects_own_images_have_no_version_that_is_known_to_be_bad() -> None:
    pins = json.loads((REPOSITORY / "docker/versions.json").read_text())
    assert (
        known_fault(AWS_OFI_NCCL, pins["efa_installer"]["aws_ofi_nccl"], "ml.p5.48xlarge") is None
    )


KEY = "arn:aws:kms:us-west-2:123456789012:key/01234567-89ab-cdef-0123-456789abcdef"
METADATA = {
    "KeyId": KEY.rpartition("/")[2],
    "KeyState": "Enabled",
    "KeyUsage": "ENCRYPT_DECRYPT",
    "KeySpec": "SYMMETRIC_DEFAULT",
}


@pytest.mark.parametrize(
    ("arn", "answer", "message"),
    [
        (KEY, {"KeyMetadata": METADATA}, None),
        (
            KEY,
            {"KeyMetadata": METADATA | {"KeyState": "PendingDeletion"}},
            "its state is PendingDeletion",
        ),
        (
            KEY,
            {"KeyMetadata": METADATA | {"KeySpec": "RSA_2048"}},
            "it is a RSA_2048 key for ENCRYPT_DECRYPT",
        ),
        (KEY, Refusal("NotFoundException"), "there is no such key"),
    ],
)
def test_keys(arn: str, answer: Any, message: str | None) -> None:
    storage = SLURM.storage.model_copy(update={"kms": arn})
    cluster = SLURM.model_copy(update={"storage": storage})
    aws = empty_account(cluster)
    aws.answer("kms", "DescribeKey", answer)
    assert [text for _, _, text in problems(aws, cluster)] == ([] if message is None else [message])


def test_the_end_of_a_plan_is_warned_of_in_time() -> None:
    ended = with_plan(training_plan(EndTime=NOW - timedelta(hours=1)))
    assert [(level, subject) for level, subject, _ in ended] == [("FAIL", PLAN)]
    [(level, _, message)] = with_plan(training_plan(EndTime=NOW + timedelta(days=13)))
    assert level == "WARN" and "ends" in message
    assert with_plan(training_plan(EndTime=NOW + timedelta(days=15))) == []
    unwatched = P5.model_copy(update={"observability": None})
    [(level, _, message)] = with_plan(training_plan(), unwatched)
    assert level == "WARN" and "no alarm comes before its end" in message
