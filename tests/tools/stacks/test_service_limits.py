"""Changes that the registry's schemas allow and the services do not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.tools.stacks import stack_templates
from tests.tools.stacks.stack_templates import Template
from tools.stacks import diff as template_diff
from tools.stacks.diff import Pair, find_exports_in_use
from tools.stacks.service_limits import find_notices

CLUSTER_FILE = str(Path(__file__).parents[3] / "clusters/slurm.yaml")


def deployed() -> dict[str, Template]:
    stacks = {name: getattr(stack_templates, name)() for name in ("network", "storage", "hyperpod")}
    properties = stacks["hyperpod"]["Resources"]["Cluster"]["Properties"]
    properties |= {
        "NodeProvisioningMode": "Continuous",
        "Orchestrator": {"Slurm": {"AccountingDatabase": {"Endpoint": "database"}}},
    }
    volume = {"EbsVolumeConfig": {"VolumeSizeInGB": 500, "VolumeKmsKeyId": "old"}}
    properties["InstanceGroups"][0] |= {
        "InstanceType": "ml.g5.8xlarge",
        "InstanceStorageConfigs": [volume],
    }
    return stacks


def cluster_of(stacks: dict[str, Template]) -> dict[str, Any]:
    properties: dict[str, Any] = stacks["hyperpod"]["Resources"]["Cluster"]["Properties"]
    return properties


def group_of(stacks: dict[str, Template]) -> dict[str, Any]:
    group: dict[str, Any] = cluster_of(stacks)["InstanceGroups"][0]
    return group


def resource(stacks: dict[str, Template], logical_id: str) -> dict[str, Any]:
    found: dict[str, Any] = stacks["storage"]["Resources"][logical_id]
    return found


Change = Callable[[dict[str, Template]], object]
CHANGES: list[tuple[Change, str, bool]] = [
    (lambda s: cluster_of(s).pop("NodeProvisioningMode"), "change NodeProvisioningMode", True),
    (lambda s: cluster_of(s)["Orchestrator"]["Slurm"].clear(), "accounting database", True),
    (lambda s: cluster_of(s)["InstanceGroups"].clear(), "group workers is gone", True),
    (lambda s: group_of(s).update(InstanceGroupName="gpu"), "group workers is gone", True),
    (
        lambda s: group_of(s).update(InstanceType="ml.g6.8xlarge"),
        "another type for group workers",
        True,
    ),
    (lambda s: group_of(s)["InstanceStorageConfigs"].clear(), "another key for its volumes", False),
    (
        lambda s: resource(s, "Lustre")["Properties"].update(StorageCapacity=600),
        "refuses to shrink",
        True,
    ),
    (lambda s: resource(s, "Lustre").update(DeletionPolicy="Delete"), "no longer kept", False),
    (lambda s: group_of(s).update(InstanceCount=9), "changes from 2 to 9 instances", False),
    (lambda s: s["storage"]["Resources"].pop("Link"), "link to the bucket is deleted", True),
]


@pytest.mark.parametrize(("change", "text", "is_certain"), CHANGES)
def test_each_is_noticed(change: Change, text: str, is_certain: bool) -> None:
    old = deployed()
    new = deployed()
    change(new)
    (found,) = [notice for name in old for notice in find_notices(name, old[name], new[name])]
    assert text in found.text
    assert found.is_certain is is_certain


def test_a_change_of_a_cluster_whose_groups_karpenter_scales_is_noticed() -> None:
    def scaled(**properties: Any) -> Template:
        group = {"InstanceGroupName": "p5", "InstanceCount": 0}
        own = {"AutoScaling": {"Mode": "Enable"}, "InstanceGroups": [group], **properties}
        return {"Resources": {"Cluster": {"Type": "AWS::SageMaker::Cluster", "Properties": own}}}

    (found,) = find_notices("hyperpod", scaled(), scaled(NodeRecovery="None"))
    assert "sends 0 instances for p5, which Karpenter scales" in found.text and not found.is_certain
    assert list(find_notices("hyperpod", scaled(), scaled())) == []


def test_growth_is_no_matter() -> None:
    old = deployed()
    new = deployed()
    resource(new, "Lustre")["Properties"]["StorageCapacity"] = 2400
    resource(new, "Lustre")["DeletionPolicy"] = "RetainExceptOnCreate"
    cluster_of(new)["InstanceGroups"].append({"InstanceGroupName": "more"})
    assert [notice for name in old for notice in find_notices(name, old[name], new[name])] == []


@pytest.mark.parametrize(
    ("deployed_stacks", "expected"),
    [
        (["network", "hyperpod"], "make destroy"),
        (["network", "storage", "hyperpod"], "make teardown"),
        (["network"], None),
    ],
)
def test_exports_in_use_are_refused(deployed_stacks: list[str], expected: str | None) -> None:
    old = {f"esm2-slurm-{name}": deployed()[name] for name in deployed_stacks}
    new = deepcopy(old)
    new["esm2-slurm-network"]["Resources"]["Subnet"]["Properties"]["CidrBlock"] = "10.0.64.0/18"
    pairs = [Pair(name, old[name], new[name]) for name in old]
    found = find_exports_in_use(pairs, region="us-west-2")
    assert len(found) == (expected is not None)
    assert all(f"run `{expected}` first" in sentence for sentence in found)


@pytest.mark.parametrize("uncertain", [True, False])
def test_notes_are_not_followed_by_the_all_clear(
    uncertain: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = stack_templates.storage()
    new = stack_templates.storage()
    new["Resources"]["Lustre"]["Properties"]["LustreConfiguration"]["EfaEnabled"] = uncertain
    for name, template in (("old", old), ("new", new)):
        (tmp_path / name).write_text(json.dumps(template))
    files = ["--old", str(tmp_path / "old"), "--new", str(tmp_path / "new")]
    monkeypatch.setattr(sys, "argv", ["template_diff", "--cluster", CLUSTER_FILE, *files])
    assert template_diff.main() == 0
    output = capsys.readouterr().out
    assert ("Nothing is certain to be lost; read the notes." in output) is uncertain
    assert ("survive this change" in output) is not uncertain
