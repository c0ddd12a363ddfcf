"""Metrics that are switched off in the cluster file stop on the nodes."""

from __future__ import annotations

from pathlib import Path

from node_setup.node import FILES
from node_setup.settings import Settings, read_section
from node_setup.step import steps_for
from node_setup.steps import (
    STEPS,
    bucket_mount,
    job_memory,
    managed_mlflow,
    metrics_collector,
    slurm_partitions,
)
from tests.lifecycle.node import StandIns, node_of


def test_what_was_installed_is_stopped_and_removed_once(
    tmp_path: Path, stand_ins: StandIns
) -> None:
    stand_ins.command("systemctl")
    node = node_of(tmp_path)
    for unit in ("node-exporter.service", "gpu-exporter.service"):
        node.install_unit(unit)
    node.changes = []
    metrics_collector.remove_metrics(node)
    assert node.changes == ["gpu-exporter.service: removed", "node-exporter.service: removed"]
    assert list(node.host.path("/etc/systemd/system").iterdir()) == []
    assert stand_ins.calls == [
        "systemctl disable --now --quiet gpu-exporter.service",
        "systemctl disable --now --quiet node-exporter.service",
        "systemctl daemon-reload",
    ]
    node.changes = []
    stand_ins.forget_calls()
    metrics_collector.remove_metrics(node)
    assert node.changes == stand_ins.calls == []


def test_a_unit_of_somebody_elses_stays(tmp_path: Path, stand_ins: StandIns) -> None:
    stand_ins.command("systemctl")
    node = node_of(tmp_path)
    node.install("/etc/systemd/system/node-exporter.service", "[Unit]\nDescription=By hand\n")
    metrics_collector.remove_metrics(node)
    assert stand_ins.calls == []


def test_every_unit_of_the_metrics_is_known() -> None:
    """Units of other steps have switches of their own."""
    units = {path.name for path in (FILES / "units").glob("*.service")}
    others = {
        "container-folders.service",
        bucket_mount.UNIT,
        job_memory.SERVICE,
        managed_mlflow.UNIT,
        slurm_partitions.UNIT,
    }
    others |= {unit for unit in units if unit.startswith("studio-")}
    assert set(metrics_collector.ALL_UNITS) == units - others


def test_it_runs_where_the_exporters_do_not(tmp_path: Path) -> None:
    names = {}
    for metrics in (True, False):
        node_of(tmp_path, metrics=metrics)
        settings = read_section(tmp_path / "settings.json", Settings)
        names[metrics] = {step.name for step in steps_for(STEPS, "worker", settings)}
    assert "metrics-off" in names[False] - names[True]
    assert "node-exporter" in names[True] - names[False]
