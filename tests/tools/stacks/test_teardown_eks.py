"""make teardown on EKS, whole, on the approved templates of a cluster with Grafana and a key of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.answering_aws import Parameters
from tests.tools.stacks.deployed_stacks import DeployedStacks, Template
from tests.tools.stacks.teardown_account import Account

GOLDEN = Path(__file__).parents[2] / "golden" / "eks-p5"
PREFIX = "esm2-eks-p5-eks-"
NETWORK, STORAGE, HYPERPOD, OBSERVABILITY = (
    f"{PREFIX}{name}" for name in ("network", "storage", "hyperpod", "observability")
)
CLUSTER = ["--cluster", "clusters/eks-p5.yaml"]
NODE_LOG = "/aws/sagemaker/Clusters/esm2-eks-p5/abc123def456"
CONTROL_PLANE_LOG = "/aws/eks/esm2-eks-p5/cluster"


def approved(*, keep: bool) -> dict[str, Template]:
    """The stacks; ``keep`` is whether the file system, bucket and key are retained, as they are."""
    files = {
        NETWORK: "EksNetworkStack",
        STORAGE: "EksStorageStack",
        HYPERPOD: "EksHyperPodStack",
        OBSERVABILITY: "EksObservabilityStack",
    }
    templates = {
        name: json.loads((GOLDEN / f"{file}.json").read_text()) for name, file in files.items()
    }
    if not keep:
        for resource in templates[STORAGE]["Resources"].values():
            if resource.get("DeletionPolicy") == "RetainExceptOnCreate":
                resource["DeletionPolicy"] = "Delete"
    return templates


def ids(template: Template, resource_type: str) -> list[str]:
    return [
        DeployedStacks.physical_id(name)
        for name, resource in template["Resources"].items()
        if resource["Type"] == resource_type
    ]


class EksAccount(Account):
    """With what the VPC CNI leaves behind, and logs that services made."""

    def __init__(self, templates: dict[str, Template]) -> None:
        super().__init__(templates, hyperpod=HYPERPOD)
        buckets = ids(templates[STORAGE], "AWS::S3::Bucket") if STORAGE in templates else []
        self.objects = {bucket: [("key", "v1")] for bucket in buckets}
        self.delete_markers = {bucket: [] for bucket in buckets}
        self.links = {}
        self.pod_interfaces = ["eni-0000000a", "eni-0000000b"]
        self.log_groups = [NODE_LOG, CONTROL_PLANE_LOG]
        self.aws.answer("ec2", "DescribeNetworkInterfaces", self._interfaces)
        self.aws.answer("ec2", "DeleteNetworkInterface", self._delete_interface)
        self.aws.answer("logs", "DescribeLogGroups", self._log_groups)

    def _interfaces(self, parameters: Parameters) -> dict[str, Any]:
        filters = {found["Name"]: found["Values"] for found in parameters["Filters"]}
        if "tag:cluster.k8s.amazonaws.com/name" not in filters:  # who holds the network
            return {"NetworkInterfaces": []}
        assert filters == {
            "group-id": ids(self.stacks.templates[NETWORK], "AWS::EC2::SecurityGroup"),
            "status": ["available"],
            "tag:cluster.k8s.amazonaws.com/name": ["esm2-eks-p5"],
        }
        return {"NetworkInterfaces": [{"NetworkInterfaceId": name} for name in self.pod_interfaces]}

    def _delete_interface(self, parameters: Parameters) -> dict[str, Any]:
        # Nodes whose interfaces they were are gone, and the network is still there.
        assert self.stacks.deleted == [OBSERVABILITY, HYPERPOD, STORAGE]
        self.pod_interfaces.remove(parameters["NetworkInterfaceId"])
        return {}

    def _log_groups(self, parameters: Parameters) -> dict[str, Any]:
        prefix = parameters["logGroupNamePrefix"]
        return {
            "logGroups": [
                {"logGroupName": name} for name in self.log_groups if name.startswith(prefix)
            ]
        }


def test_everything_goes_in_order_and_pods_interfaces_before_the_network(run_teardown: Any) -> None:
    account = EksAccount(approved(keep=False))
    output = run_teardown(account, *CLUSTER, "--yes", "esm2-eks-p5")
    assert account.stacks.deleted == [OBSERVABILITY, HYPERPOD, STORAGE, NETWORK]
    assert set(account.stacks.status.values()) == {"DELETE_COMPLETE"}
    assert account.pod_interfaces == []
    assert "deleted eni-0000000a, which a pod had" in output
    assert not any(account.objects.values())
    lost = output.partition("Lost for good:")[2].partition("Kept in")[0]
    for thing in (
        "the control plane, with all objects of Kubernetes",
        "Grafana, with people's dashboards",
        ": metrics\n",
        "image repository, with its images",
        "file system\n",
    ):
        assert thing in lost


def test_what_the_file_retains_is_named_and_keeps_the_network(run_teardown: Any) -> None:
    account = EksAccount(approved(keep=True))
    output = run_teardown(account, *CLUSTER, "--yes", "esm2-eks-p5")
    assert account.stacks.deleted == [OBSERVABILITY, HYPERPOD, STORAGE]
    assert account.pod_interfaces == ["eni-0000000a", "eni-0000000b"]
    kept = output.partition("Deleted esm2")[2]
    storage = approved(keep=True)[STORAGE]
    (file_system,) = ids(storage, "AWS::FSx::FileSystem")
    (key,) = ids(storage, "AWS::KMS::Key")
    assert f"aws fsx delete-file-system --file-system-id {file_system}" in kept
    assert f"{key} (KMS Key): bills by the month" in kept
    assert (
        f"Stack {NETWORK} stays, because a network in use cannot be deleted: {file_system} use it."
        in kept
    )
    assert "NAT gateway" in kept


def test_logs_of_services_are_named(run_teardown: Any) -> None:
    """EKS's group is the stack's, unless the stack is gone and it was made again."""
    templates = approved(keep=False)
    for name, log in templates[HYPERPOD]["Resources"].items():
        if log["Properties"].get("LogGroupName") == CONTROL_PLANE_LOG:
            templates[HYPERPOD]["Resources"][CONTROL_PLANE_LOG] = templates[HYPERPOD][
                "Resources"
            ].pop(name)
            break
    account = EksAccount(templates)
    account.log_groups = [NODE_LOG, DeployedStacks.physical_id(CONTROL_PLANE_LOG)]
    output = run_teardown(account, *CLUSTER, "--dry-run")
    assert f"aws logs delete-log-group --log-group-name {NODE_LOG}" in output
    assert CONTROL_PLANE_LOG not in output
    left = EksAccount({})
    own = [CONTROL_PLANE_LOG, "/aws/containerinsights/esm2-eks-p5/host"]
    left.log_groups = [*own, "/aws/eks/another/cluster"]
    output = run_teardown(left, *CLUSTER)
    assert "Stacks to delete, in this order:\n  none" in output
    for name in own:
        assert f"{name}: a service's log, bills by the GB and month" in output
    assert "another" not in output


def test_reports_a_stuck_stack_and_leaves_those_below(run_teardown: Any) -> None:
    """If a chart cannot be removed, nodes and network stay for the next attempt."""
    account = EksAccount(approved(keep=False))
    (chart,) = [
        name
        for name, resource in account.stacks.templates[HYPERPOD]["Resources"].items()
        if resource["Type"] == "Custom::AWSCDK-EKS-HelmChart"
    ]
    account.stacks.stuck[chart] = (
        "Received response status [FAILED] from custom resource: i/o timeout"
    )
    with pytest.raises(
        ValueError, match=f"{HYPERPOD} could not be deleted: {chart}: .*i/o timeout"
    ):
        run_teardown(account, *CLUSTER, "--yes", "esm2-eks-p5")
    assert account.stacks.deleted == [OBSERVABILITY, HYPERPOD]
    assert all(account.objects.values())
    assert len(account.pod_interfaces) == 2
