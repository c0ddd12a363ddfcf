"""Pods of the stack against the pods that nodes can hold."""

from __future__ import annotations

import pytest

from config.eks_cluster import EksCluster
from config.facts.instance_catalogue import instance_type
from config.pod_demand import pod_room
from tests.tools.cluster_files import shipped_eks
from tests.tools.preflight.eks_accounts import EKS, P5, eks_account
from tools.preflight.finding import Finding
from tools.preflight.pods import check_pods
from tools.preflight.read_only_aws import ReadOnlyAws


def found(cluster: EksCluster) -> list[Finding]:
    return list(check_pods(ReadOnlyAws(eks_account().session), cluster))


def small(*groups: tuple[str, str, int]) -> EksCluster:
    return shipped_eks(
        "eks",
        instance_groups=[
            {"name": name, "instance_type": type_name, "num_instances": count}
            for name, type_name, count in groups
        ],
    )


def test_hyperpods_published_limit() -> None:
    """aws/sagemaker-hyperpod-cli issue 142 shows maxPods of this type."""
    assert pod_room(instance_type("ml.g5.xlarge")) == 14


@pytest.mark.parametrize("cluster", [EKS, P5, shipped_eks("eks-trn2")], ids=["eks", "p5", "trn2"])
def test_the_example_files_have_room(cluster: EksCluster) -> None:
    (finding,) = found(cluster)
    assert finding.level == "OK"


def test_a_group_whose_nodes_are_too_small_is_named() -> None:
    first, *_ = found(small(("system", "ml.t3.medium", 3), ("workers", "ml.g5.8xlarge", 2)))
    assert (first.level, first.subject) == ("WARN", "pods of group system")
    assert "an ml.t3.medium holds 5" in first.message
    assert "larger instance_type for group system" in first.action


def test_one_small_node_has_no_room_for_the_rest() -> None:
    (finding,) = found(small(("workers", "ml.g5.xlarge", 1)))
    assert "need room on workers, which have room for" in finding.message
    assert "for group workers" in finding.action
    assert [finding.level for finding in found(small(("workers", "ml.g5.xlarge", 6)))] == ["OK"]


@pytest.mark.parametrize(("profile", "levels"), [("1g.20gb", ["OK"]), ("1g.10gb", ["WARN"])])
def test_each_slice_of_a_gpu_may_have_a_pod(profile: str, levels: list[str]) -> None:
    groups = [
        group.model_copy(update={"mig_profile": profile}) if group.hardware.num_gpus else group
        for group in P5.instance_groups
    ]
    findings = found(P5.model_copy(update={"instance_groups": groups}))
    assert [finding.level for finding in findings] == levels
    if levels == ["WARN"]:
        assert "mig_profile with fewer slices per GPU for group p5" in findings[0].action
