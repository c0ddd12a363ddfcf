"""Groups of several instance types: what plan, bill, checks and jobs assume about their nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.address_demand import node_interfaces
from config.cluster import Cluster, InstanceGroup
from config.facts.price_list import Price, load_prices
from config.node_settings import node_settings
from config.slurm_cluster import SlurmCluster
from manifests.chart_values import chart_values
from manifests.karpenter import karpenter_objects
from tests.tools.accounts import empty_account
from tests.tools.answering_aws import Parameters
from tests.tools.cluster_files import shipped, shipped_eks, with_group
from tests.tools.jobs.kubernetes.eks_jobs_made import made, pod
from tests.tools.json_documents import RunJson
from tests.tools.preflight.report import findings
from tests.tools.preflight.test_quotas import with_other_cluster
from tools.cost.__main__ import capacity_notes
from tools.cost.bill import Usage, make_bill
from tools.cost.cluster_items import cluster_items
from tools.plan import __main__ as plan_command
from tools.stacks.service_limits import find_notices
from tools.usage.node_kinds import cluster_node_kinds

SMALL = ["ml.g5.8xlarge", "ml.g6.8xlarge", "ml.g6e.8xlarge"]
"""One A10G (22 GiB), L4 (22 GiB) or L40S (44 GiB), and one EFA interface."""
LARGE = ["ml.p5e.48xlarge", "ml.p5.48xlarge"]


def several(cluster: Any, name: str, types: list[str], **changes: Any) -> Any:
    """Return a cluster with several types in a group."""
    return with_group(cluster, name, instance_type=None, instance_types=types, **changes)


def group(cluster: Cluster, name: str) -> InstanceGroup:
    (found,) = [one for one in cluster.instance_groups if one.name == name]
    return found


SLURM: SlurmCluster = several(shipped("slurm"), "workers", SMALL)
P5: SlurmCluster = several(shipped("slurm-p5"), "p5", LARGE, training_plan_arn=None)


def test_each_node_has_at_least_the_smallest_hardware() -> None:
    found = group(SLURM, "workers").hardware
    assert (found.num_gpus, found.num_efa, found.accelerator_memory_gib) == (1, 1, 22)
    assert (found.vcpus, found.memory_gib, found.network_gbps) == (32, 128, 25)
    assert node_interfaces(group(P5, "p5")) == 32


def test_nodes_are_set_up_for_the_devices_that_all_types_have() -> None:
    settings = node_settings(SLURM)["instance_groups"]["workers"]
    assert settings["instance_type"] == "ml.g5.8xlarge or ml.g6.8xlarge or ml.g6e.8xlarge"
    assert (settings["num_gpus"], settings["num_efa_interfaces"]) == (1, 1)


@pytest.mark.parametrize(
    ("file", "group", "types", "slowest"),
    [("slurm", "workers", SMALL, "L4"), ("slurm-p5", "p5", LARGE, "H100")],
)
def test_a_plan_is_that_of_the_smallest_and_slowest_type(
    run_json: RunJson,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    file: str,
    group: str,
    types: list[str],
    slowest: str,
) -> None:
    def planned(**changes: Any) -> Any:
        path = tmp_path / "cluster.yaml"
        cluster = with_group(shipped(file), group, training_plan_arn=None, **changes)
        path.write_text(yaml.safe_dump(cluster.model_dump(mode="json", exclude_unset=True)))
        run = ["--config", "workloads/seqlm/configs/esm2_35m.yaml", "--cluster", str(path)]
        return run_json(plan_command.main, *run, "--group", group)["result"]

    together = planned(instance_type=None, instance_types=types)
    # Without --json, the same arguments print text.
    monkeypatch.setattr(sys, "argv", sys.argv[:-1])
    assert plan_command.main() == 0
    text = capsys.readouterr().out
    assert f"{group} may have {' or '.join(types)}: " in text
    assert f"the slowest accelerator, {slowest}, " in text
    alone = [planned(instance_type=name) for name in types]
    for field in ("low", "high"):
        rates = [one["residues_per_second"][field] for one in alone]
        assert together["residues_per_second"][field] == min(rates)
    assert len({one["residues_per_second"]["low"] for one in alone}) > 1
    memories = [one["usable_bytes"] for one in alone]
    assert together["usable_bytes"] == min(memories) < max(memories)
    # The list of prices lacks some types.
    dearest = max(one["nodes_usd"]["high"] for one in alone if one["nodes_usd"])
    assert together["nodes_usd"]["high"] >= dearest


def test_the_bill_has_the_dearest_type_and_names_the_range() -> None:
    prices = {
        f"hyperpod.{name}": Price(usd, "hour", "2026-11", "test", "", SLURM.region)
        for name, usd in zip(SMALL, (3.0, 2.5, 5.0), strict=True)
    }
    bill = make_bill(SLURM.region, cluster_items(SLURM, Usage(hours=10)), prices)
    (nodes,) = [line for line in bill.lines if line.item.key == "hyperpod.ml.g5.8xlarge"]
    assert nodes.monthly_usd == 2 * 10 * 5.0
    assert list(capacity_notes(SLURM, prices)) == [
        "workers: a node costs 2.50 (ml.g6.8xlarge) to 5.00 USD per hour (ml.g6e.8xlarge), and the table has "
        "the dearest."
    ]
    kind = cluster_node_kinds(SLURM, prices, {}).of_groups["workers"]
    assert kind.price == prices["hyperpod.ml.g6e.8xlarge"]
    del prices["hyperpod.ml.g6e.8xlarge"]
    (note,) = capacity_notes(SLURM, prices)
    assert note.endswith("; no price is known for ml.g6e.8xlarge.")


def test_the_price_of_a_type_that_no_list_has_is_lacking_only_if_all_are() -> None:
    known = load_prices(SLURM.region)
    bill = make_bill(SLURM.region, cluster_items(SLURM, Usage()), known)
    assert not [key for key in bill.lacking if key.startswith("hyperpod.ml")]
    bill = make_bill(SLURM.region, cluster_items(SLURM, Usage()), {})
    assert {f"hyperpod.{name}" for name in SMALL} <= set(bill.lacking)


def levels(cluster: Cluster, offered: list[str], prefix: str) -> dict[str, str]:
    """Return the level of each finding about offers or quotas, by its message."""
    aws = empty_account(cluster)

    def answer(parameters: Parameters) -> dict[str, Any]:
        (names,) = parameters["Filters"]
        zone = cluster.network.availability_zone_ids[0]  # type: ignore[union-attr]
        found = [
            {"InstanceType": name, "Location": zone}
            for name in names["Values"]
            if f"ml.{name}" in offered or f"ml.{name}" not in SMALL
        ]
        return {"InstanceTypeOfferings": found}

    aws.answer("ec2", "DescribeInstanceTypeOfferings", answer)
    return {
        found.message.partition(";")[0]: found.level
        for found in findings(aws, cluster)
        if found.subject.startswith(prefix)
    }


def test_one_type_must_be_offered_in_the_zone() -> None:
    some = levels(SLURM, SMALL[1:], "offer workers")
    assert some == {
        "ml.g5.8xlarge is not offered in usw2-az2": "WARN",
        "ml.g6.8xlarge is offered in usw2-az2": "OK",
        "ml.g6e.8xlarge is offered in usw2-az2": "OK",
    }
    assert set(levels(SLURM, [], "offer workers").values()) == {"FAIL"}
    assert set(levels(SLURM, SMALL, "types of workers").values()) == {"WARN"}


def test_one_quota_must_suffice_for_all_nodes_of_the_group() -> None:
    # The account has a quota of 4 instances of ml.g5.8xlarge, and of 64 of ml.p5.48xlarge.
    cluster = several(shipped("slurm"), "workers", ["ml.g5.8xlarge", "ml.p5.4xlarge"])
    found = {
        finding.subject: finding.level
        for finding in findings(empty_account(cluster), cluster)
        if "for cluster usage" in finding.subject
    }
    assert found["quota ml.g5.8xlarge for cluster usage"] == "OK"
    too_many = with_group(cluster, "workers", num_instances=5)
    (message,) = [
        (finding.level, finding.message)
        for finding in findings(empty_account(too_many), too_many)
        if finding.subject == "quota ml.g5.8xlarge for cluster usage"
    ]
    # The quota of the other type is not known, so it may suffice.
    assert message == ("WARN", "5 instance(s) needed, the quota is 4")


def test_nodes_elsewhere_count_by_their_own_type() -> None:
    cluster = shipped("slurm")
    aws = empty_account(cluster)
    other = {
        "InstanceGroupName": "g",
        "InstanceRequirements": {"DesiredInstanceTypes": ["ml.g6.8xlarge", "ml.g5.8xlarge"]},
        "InstanceTypeDetails": [{"InstanceType": "ml.g5.8xlarge", "CurrentCount": 3}],
        "CurrentCount": 3,
        "TargetCount": 9,
    }
    with_other_cluster(aws, [other])
    (found,) = [
        finding
        for finding in findings(aws, cluster)
        if finding.subject == "quota ml.g5.8xlarge for cluster usage"
    ]
    assert found.message == "2 instance(s) needed, 3 in use, the quota is 4"


def test_a_job_on_eks_finds_its_nodes_by_the_name_of_the_group() -> None:
    cluster = several(shipped_eks("eks"), "workers", SMALL)
    job = made(cluster=cluster)
    selector = pod(job)["nodeSelector"]
    assert selector["sagemaker.amazonaws.com/instance-group-name"] == "workers"
    assert "node.kubernetes.io/instance-type" not in selector
    assert job.resources.num_gpus == 1


def test_plugins_run_on_each_type() -> None:
    cluster = several(shipped_eks("eks-p5"), "p5", LARGE, training_plan_arn=None)
    values = chart_values(cluster, "repository")
    assert set(LARGE) <= set(
        values["aws-efa-k8s-device-plugin"]["supportedInstanceLabels"]["values"]
    )
    scaled = several(cluster, "p5", LARGE, num_instances=0, max_instances=4)
    (pool,) = [found for found in karpenter_objects(scaled) if found["kind"] == "NodePool"]
    (types,) = pool["spec"]["template"]["spec"]["requirements"]
    assert types["values"] == LARGE and pool["spec"]["limits"] == {"cpu": str(4 * 192)}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            {"InstanceRequirements": {"InstanceTypes": SMALL}},
            {"InstanceRequirements": {"InstanceTypes": SMALL[:2]}},
            "group workers starts nodes of ml.g5.8xlarge, ml.g6.8xlarge from now on, no longer of",
        ),
        (
            {"InstanceType": SMALL[0]},
            {"InstanceRequirements": {"InstanceTypes": SMALL}},
            "group workers changes between instance_type and instance_types",
        ),
    ],
)
def test_diff_names_the_effect_of_other_types(
    before: dict[str, Any], after: dict[str, Any], expected: str
) -> None:
    old, new = (
        {
            "Resources": {
                "Cluster": {
                    "Type": "AWS::SageMaker::Cluster",
                    "Properties": {
                        "InstanceGroups": [{"InstanceGroupName": "workers", **types}],
                    },
                }
            }
        }
        for types in (before, after)
    )
    (notice,) = find_notices("stack", old, new)
    assert notice.text.startswith(expected) and not notice.is_certain
