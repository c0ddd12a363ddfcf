"""Counters of EFA adapters, as sysfs has them, under AWS's names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collectors import efa_metrics
from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import exporters as step
from tests.lifecycle.node import SCRIPTS, node_of
from tests.lifecycle.services import Services, services

__all__ = ["services"]


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """/sys/class/infiniband of a node with two adapters, as the efa driver fills it."""
    folder = tmp_path / "infiniband"
    for name, sent in (("rdmap16s27", 100), ("rdmap32s27", 200)):
        counters = folder / name / "ports/1/hw_counters"
        counters.mkdir(parents=True)
        for counter, value in (
            ("tx_bytes", f"{sent}\n"),
            ("lifespan", "12\n"),
            ("broken", "N/A\n"),
        ):
            (counters / counter).write_text(value)
        (folder / name / "fw_ver").write_text("0.0.0.0\n")
        (folder / name / "hca_type").write_text("\n")
    return folder


def test_writes_counters_of_each_adapter_and_port(devices: Path) -> None:
    assert efa_metrics.metrics(devices).splitlines() == [
        "# TYPE node_amazonefa_info gauge",
        'node_amazonefa_info{device="rdmap16s27",board_id="",firmware_version="0.0.0.0",hca_type=""} 1',
        'node_amazonefa_info{device="rdmap32s27",board_id="",firmware_version="0.0.0.0",hca_type=""} 1',
        "# TYPE node_amazonefa_lifespan gauge",
        'node_amazonefa_lifespan{device="rdmap16s27",port="1"} 12',
        'node_amazonefa_lifespan{device="rdmap32s27",port="1"} 12',
        "# TYPE node_amazonefa_tx_bytes counter",
        'node_amazonefa_tx_bytes{device="rdmap16s27",port="1"} 100',
        'node_amazonefa_tx_bytes{device="rdmap32s27",port="1"} 200',
    ]


def test_it_writes_a_file_that_all_may_read(devices: Path, tmp_path: Path) -> None:
    output = tmp_path / "efa.prom"
    program = [
        sys.executable,
        "-m",
        "collectors.efa_metrics",
        "--devices",
        devices,
        "--output",
        output,
    ]
    subprocess.run(program, cwd=SCRIPTS, check=True, timeout=60)
    assert "node_amazonefa_tx_bytes" in output.read_text()
    assert output.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.glob("*prom*")] == ["efa.prom"]


def test_without_adapters_there_are_no_metrics(tmp_path: Path) -> None:
    assert efa_metrics.metrics(tmp_path / "missing") == "\n"


def write_at_start(node: Node, services: Services, devices: Path) -> None:
    output = node.host.path("/var/lib/node_exporter/textfile/efa_metrics.prom")
    output.parent.mkdir(parents=True)
    program = node.host.path("/usr/local/lib/node-setup/efa_metrics.py")
    services.at_start(f"'{sys.executable}' '{program}' --devices '{devices}' --output '{output}'")


def test_the_step_runs_it_and_counts_adapters(
    tmp_path: Path, services: Services, devices: Path
) -> None:
    node = node_of(tmp_path)
    write_at_start(node, services, devices)
    step.run_collector_of_efa(node)
    assert node.warnings == [
        "2 EFA adapters of 1 are in /sys/class/infiniband; NCCL falls back to TCP without them: "
        "see `fi_info --provider efa` and `lsmod | grep efa`"
    ]
    assert services.restarts == ["efa-metrics.service"]
    node.changes = []
    node.warnings = []
    step.run_collector_of_efa(node)
    assert node.changes == [] and services.restarts == ["efa-metrics.service"]


def test_a_node_without_adapters_runs_none(tmp_path: Path, services: Services) -> None:
    node = node_of(tmp_path, "controller")
    step.run_collector_of_efa(node)
    assert node.changes == [] and services.restarts == []


def test_a_collector_that_writes_nothing_shows_its_log(tmp_path: Path, services: Services) -> None:
    with pytest.raises(
        SetupError, match=r"has no numbers in .*efa_metrics.prom after 60 s; its log ends with"
    ):
        step.run_collector_of_efa(node_of(tmp_path))


def test_warns_of_missing_adapters(tmp_path: Path, services: Services) -> None:
    node = node_of(tmp_path)
    write_at_start(node, services, tmp_path / "missing")
    step.run_collector_of_efa(node)
    assert node.warnings[0].startswith("0 EFA adapters of 1")
