"""People whom a deployed EKS cluster admits keep their access while others are added, and leave."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import Environment, Stack

from config.eks_cluster import EksCluster
from constructs.eks.kubernetes_cluster import KubernetesCluster
from stacks.network_stack import NetworkStack
from tests.golden.normalised import GOLDEN
from tests.local_aws.deployment import LocalAws
from tests.local_aws.template_stacks import REGION, Resources, Stacks, control_plane, service_role
from tests.stacks.synthesized import load, new_app

pytestmark = pytest.mark.long

FILE = "clusters/eks-p5.yaml"
ASSETS = "templates-of-access-entries"
ENTRY, NESTED = "AWS::EKS::AccessEntry", "AWS::CloudFormation::Stack"
NAME = "access"
CLUSTER = "esm2-eks-p5"
FIRST_ENTRIES = 8
"""Entries in the cluster's own stack in this test; there are more in fact."""
MORE = 8
"""Entries that do not fit into the cluster's own stack."""
NUM_EARLIER = FIRST_ENTRIES + 4
"""Entries in the own stack of a cluster that an earlier version deployed."""
LEAVERS = (1, FIRST_ENTRIES)
"""Places of those whose access is taken away: in the cluster's own stack, and in a nested one."""
Entry = dict[str, Any]
Update = Callable[..., str]


def without_the_installer(resources: Resources) -> Resources:
    """Access entries of the file, and nested stacks, without the cluster that they refer to."""
    found = {
        name: copy.deepcopy(resource)
        for name, resource in resources.items()
        if resource["Type"] in (ENTRY, NESTED) and "ClusterAdminRole" not in name
    }
    for resource in found.values():
        properties = resource["Properties"]
        properties.pop("Tags", None)
        if resource["Type"] == ENTRY:
            properties["ClusterName"] = CLUSTER
        else:
            properties["Parameters"] = dict.fromkeys(properties["Parameters"], CLUSTER)
        resource.pop("Metadata", None)
        resource.pop("DependsOn", None)
    return found


def synthesized(folder: Path, cluster: EksCluster, s3: Any) -> Resources:
    """The access entries of a cluster file, after the upload of their nested templates."""
    app = new_app(None, folder)
    env = Environment(region=cluster.region)
    network = NetworkStack(app, "Network", cluster=cluster, env=env, stack_name="network").network
    stack = Stack(app, "HyperPod", env=env)
    KubernetesCluster(
        stack,
        "Kubernetes",
        settings=cluster,
        network=network,
        key=None,
        image_repository="without copies",
    )
    app.synth()
    resources = json.loads((folder / "HyperPod.template.json").read_text())["Resources"]
    for resource in resources.values():
        if resource["Type"] == NESTED:
            path = folder / resource["Metadata"]["aws:asset:path"]
            template = json.loads(path.read_text())
            template["Resources"] = without_tags(template["Resources"])
            body = json.dumps(template)
            # Assets are named by their content, so a nested stack without changes is not updated.
            key = hashlib.sha256(body.encode()).hexdigest()
            s3.put_object(Bucket=ASSETS, Key=key, Body=body)
            resource["Properties"]["TemplateURL"] = f"https://s3.amazonaws.com/{ASSETS}/{key}"
    return without_the_installer(resources)


def without_tags(resources: Resources) -> Resources:
    for resource in resources.values():
        resource["Properties"].pop("Tags", None)
    return resources


def of_principals(arns: Iterable[str]) -> Resources:
    """Roles with these ARNs, because EKS admits only who exists."""
    roles: Resources = {}
    for number, arn in enumerate(arns):
        *path, name = arn.partition(":role/")[2].split("/")
        folder = "/".join(["", *path, ""])
        properties = {"RoleName": name, "Path": folder}
        roles[f"Principal{number}"] = service_role(
            "ec2.amazonaws.com", "sts:AssumeRole", **properties
        )
    return roles


def names(stacks: Stacks) -> list[str]:
    """The cluster's own stack and the nested ones."""
    summaries = stacks.cloudformation.describe_stacks()["Stacks"]
    return [stack["StackName"] for stack in summaries if stack["StackName"].startswith(NAME)]


def changes(stacks: Stacks) -> list[tuple[str, str]]:
    """Logical id and status of what happened to access entries, in this stack and the nested ones."""
    return [
        (event["LogicalResourceId"], event["ResourceStatus"])
        for name in names(stacks)
        for event in stacks.events(name)
        if event["ResourceType"] == ENTRY
    ]


def entry_of(name: str) -> Entry:
    return {"principal_arn": f"arn:aws:iam::123456789012:role/{name}", "level": "view"}


@pytest.fixture(scope="module")
def access() -> list[Entry]:
    """Entries of the cluster file, and of people who are added to it."""
    first = [entry.model_dump() for entry in load(FILE).kubernetes.access]
    more = FIRST_ENTRIES + MORE - len(first)
    return [*first, *(entry_of(f"person-{number}") for number in range(more))]


@pytest.fixture(scope="module")
def stacks(empty_aws: LocalAws, access: list[Entry]) -> Stacks:
    """Stacks of an account, with the entries as they were deployed before there were nested stacks."""
    found = Stacks(empty_aws)
    s3 = empty_aws.client("s3", REGION)
    s3.create_bucket(Bucket=ASSETS, CreateBucketConfiguration={"LocationConstraint": REGION})
    # The approved template has them.
    golden = json.loads((GOLDEN / "eks-p5" / "EksHyperPodStack.json").read_text())["Resources"]
    deployed = without_the_installer(golden)
    there = control_plane(CLUSTER) | of_principals(entry["principal_arn"] for entry in access)
    assert found.deploy("of-entries", there) == "CREATE_COMPLETE", found.reasons("of-entries")
    assert found.deploy(NAME, deployed) == "CREATE_COMPLETE", found.reasons(NAME)
    assert len(load(FILE).kubernetes.access) == len(deployed) == len(changes(found)) > 0
    return found


@pytest.fixture
def update(stacks: Stacks, empty_aws: LocalAws, tmp_path: Path) -> Update:
    """Return a function that updates the stack to these entries, and returns its status."""

    def run(entries: Sequence[Entry], first_entries: int, *, kind: str = "UPDATE") -> str:
        cluster = load(FILE, kubernetes={"access": list(entries)})
        # Fewer than a file may have.
        few = {"entries_in_cluster_stack": first_entries}
        kubernetes = cluster.kubernetes.model_copy(update=few)
        cluster = cluster.model_copy(update={"kubernetes": kubernetes})
        s3 = empty_aws.client("s3", REGION)
        folder = tmp_path / f"{tmp_path.name}-{len(list(tmp_path.iterdir()))}"
        return stacks.deploy(NAME, synthesized(folder, cluster, s3), kind=kind)

    return run


def admitted(aws: LocalAws) -> set[str]:
    found = aws.client("eks", REGION).list_access_entries(clusterName=CLUSTER)["accessEntries"]
    return set(found)


def test_no_one_loses_access_when_the_entries_outgrow_the_stack(
    stacks: Stacks, access: list[Entry], update: Update
) -> None:
    assert update(access, FIRST_ENTRIES) == "UPDATE_COMPLETE", stacks.reasons(NAME)
    found = changes(stacks)
    assert {status for _, status in found} == {"CREATE_COMPLETE"}
    assert len(found) == len(access)


def test_an_update_that_would_move_an_entry_changes_no_access(
    stacks: Stacks, access: list[Entry], empty_aws: LocalAws, update: Update
) -> None:
    """CloudFormation creates the entry of a principal who has one already."""
    update(access, FIRST_ENTRIES)
    before = admitted(empty_aws)
    assert {entry["principal_arn"] for entry in access} <= before
    assert update(access, FIRST_ENTRIES - 1) == "UPDATE_ROLLBACK_COMPLETE"
    found = "".join(stacks.reasons(name) for name in names(stacks))
    assert f"{access[FIRST_ENTRIES - 1]['principal_arn']} already has an access entry" in found
    assert admitted(empty_aws) == before


def test_leavers_lose_their_access_and_no_one_else_is_touched(
    stacks: Stacks, access: list[Entry], empty_aws: LocalAws, update: Update
) -> None:
    update(access, FIRST_ENTRIES)
    before = admitted(empty_aws)
    earlier = Counter(changes(stacks))
    without = {"level": "none", "namespaces": []}
    entries = [entry | without if place in LEAVERS else entry for place, entry in enumerate(access)]
    assert update(entries, FIRST_ENTRIES) == "UPDATE_COMPLETE", stacks.reasons(NAME)
    assert before - admitted(empty_aws) == {access[place]["principal_arn"] for place in LEAVERS}
    assert admitted(empty_aws) < before
    later = Counter(changes(stacks)) - earlier
    assert [status for _, status in later.elements()] == ["DELETE_COMPLETE"] * len(LEAVERS)


def test_entries_of_an_earlier_version_stay_in_the_cluster_s_own_stack(
    stacks: Stacks, access: list[Entry], empty_aws: LocalAws, update: Update
) -> None:
    """An earlier version had all entries there: the setting keeps them, and the default moves them."""
    earlier = access[:NUM_EARLIER]
    stacks.delete(NAME)
    assert admitted(empty_aws) == set()
    created = update(earlier, NUM_EARLIER, kind="CREATE")
    assert created == "CREATE_COMPLETE", stacks.reasons(NAME)
    assert names(stacks) == [NAME]
    before = Counter(changes(stacks))
    principals = admitted(empty_aws)
    assert {entry["principal_arn"] for entry in earlier} == principals
    assert update(access, FIRST_ENTRIES) == "UPDATE_ROLLBACK_COMPLETE"
    assert admitted(empty_aws) == principals
    after_refusal = Counter(changes(stacks))
    assert update(access, NUM_EARLIER) == "UPDATE_COMPLETE", stacks.reasons(NAME)
    assert len(names(stacks)) > 1
    assert {entry["principal_arn"] for entry in access} == admitted(empty_aws)
    of_update = Counter(changes(stacks)) - after_refusal
    assert {status for _, status in of_update} == {"CREATE_COMPLETE"}
    assert of_update.total() == len(access) - NUM_EARLIER
    assert not any(name in dict(before) for name, _ in of_update)
