"""Weights and features of nodes follow the groups of a cluster file, and others' features stay."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node_setup import node_weights, partition_options
from node_setup.steps import slurm_partitions
from tests.lifecycle.node import ADDRESSES, StandIns, node_of, resource_config, settings_document

PLAN = "10.1.0.7"
FILES = "root/usr/local/lib/node-setup"
SHOWN = f"""\
NodeName=ip-1 AvailableFeatures=(null) ActiveFeatures=(null) NodeAddr={ADDRESSES["workers"]} Weight=1 \
Reason=Weight=7 of NodeAddr={PLAN} [root@2026-11-27T10:00:00]
NodeName=ip-2 AvailableFeatures=efa,spot ActiveFeatures=efa,spot NodeAddr={PLAN} Weight=1 Partitions=gpu
NodeName=ip-3 AvailableFeatures=(null) ActiveFeatures=(null) NodeAddr=10.9.9.9 Weight=1 Partitions=dev
"""
SET = [
    "scontrol update NodeName=ip-1 Weight=30 AvailableFeatures=spot ActiveFeatures=spot",
    "scontrol update NodeName=ip-2 Weight=10 AvailableFeatures=efa,plan ActiveFeatures=efa,plan",
]


def settings(**weights: tuple[int, str]) -> dict[str, Any]:
    """Groups as the cluster file has them, with a weight and a feature for some."""
    groups = settings_document()["instance_groups"]
    for name, (weight, feature) in weights.items():
        groups[name] = {**groups["workers"], "weight": weight, "feature": feature}
    return groups


def apply(
    folder: Path, stand_ins: StandIns, shown: str, groups: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Changes of the step, and the calls of scontrol that change something."""
    (folder / "shown").write_text(shown)
    body = f'[[ "$*" != *"show node" ]] || cat {folder}/shown; echo Slurmctld is UP'
    stand_ins.command("scontrol", body)
    stand_ins.command("systemctl")
    stand_ins.forget_calls()
    config = resource_config()
    config["InstanceGroups"] += [
        {"Name": "planned", "Instances": [{"CustomerIpAddress": PLAN}]},
        {"Name": "empty", "Instances": None},
    ]
    path = folder / "root/opt/ml/config/resource_config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    node = node_of(folder, "controller", instance_groups=groups)
    slurm_partitions.apply(node)
    calls = [
        call for call in stand_ins.calls if call.startswith(("scontrol update", "scontrol rec"))
    ]
    return node.changes, calls


def test_weights_and_features_are_set_once_and_removed(tmp_path: Path, stand_ins: StandIns) -> None:
    mixed = settings(workers=(30, "spot"), planned=(10, "plan"))
    changes, calls = apply(tmp_path, stand_ins, SHOWN, mixed)
    assert calls == SET
    assert changes[-1].startswith("partition-options.service ")
    ready = SHOWN.replace("Weight=1 Partitions=gpu", "Weight=10 Partitions=gpu")
    ready = ready.replace("efa,spot", "efa,plan").replace("Weight=1 Reason", "Weight=30 Reason")
    ready = ready.replace("(null)", "spot", 2)
    assert apply(tmp_path, stand_ins, ready, mixed) == ([], [])
    # All groups are alike again.
    _, calls = apply(tmp_path, stand_ins, ready, settings())
    assert calls == [
        "scontrol reconfigure",
        "scontrol update NodeName=ip-1 AvailableFeatures= ActiveFeatures=",
        "scontrol update NodeName=ip-2 AvailableFeatures=efa ActiveFeatures=efa",
    ]
    assert not (tmp_path / FILES / "node_weights.json").exists()
    assert apply(tmp_path, stand_ins, SHOWN, settings()) == ([], [])


def test_clusters_without_weights_keep_their_nodes(tmp_path: Path, stand_ins: StandIns) -> None:
    assert apply(tmp_path, stand_ins, SHOWN, settings()) == ([], [])
    assert not (tmp_path / FILES).exists()


def test_nodes_with_the_same_changes_share_a_command() -> None:
    wanted = {"spot": node_weights.GroupOptions(weight=30, feature="spot")}
    text = "".join(
        f"NodeName=ip-{number} AvailableFeatures=(null) NodeAddr=10.0.0.{number} Weight=1\n"
        for number in (1, 2, 3)
    )
    groups = {"10.0.0.1": "spot", "10.0.0.3": "spot"}
    assert node_weights.updates(wanted, groups, node_weights.shown_nodes(text)) == [
        [
            "scontrol",
            "update",
            "NodeName=ip-1,ip-3",
            "Weight=30",
            "AvailableFeatures=spot",
            "ActiveFeatures=spot",
        ]
    ]
    assert node_weights.shown_nodes("No nodes in the system\n") == []


def test_the_service_finds_nodes_that_join(
    tmp_path: Path,
    stand_ins: StandIns,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    apply(tmp_path, stand_ins, SHOWN, settings(workers=(30, "spot"), planned=(10, "plan")))
    capsys.readouterr()

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(partition_options, "time", SimpleNamespace(sleep=sleep))
    config = tmp_path / "root/opt/ml/config/resource_config.json"
    monkeypatch.setenv("SAGEMAKER_RESOURCE_CONFIG_PATH", str(config))
    files = [
        str(tmp_path / FILES / name) for name in ("partition_options.json", "node_weights.json")
    ]
    monkeypatch.setattr("sys.argv", ["partition_options.py", *files])
    with pytest.raises(KeyboardInterrupt):
        partition_options.main()
    assert capsys.readouterr().out.splitlines() == SET
