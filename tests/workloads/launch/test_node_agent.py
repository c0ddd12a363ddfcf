"""torchrun on a node of a job: with whom its processes meet, and where."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.launcher.api import LaunchConfig

from seqlm.launch.node_agent import (
    CHECK,
    CHECK_MEETING_VARIABLE,
    find_group,
    launch_config,
    wait_for_first,
)
from tests.workloads.launch.slurm_stand_ins import Slurm


def test_a_node_meets_its_own_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    job = Slurm(tmp_path).job
    group = find_group("node-4", ["node-1,node-2", "node-3,node-4"])
    first, second = (launch_config(job, "0.1", "train", node, group) for node in group)
    assert (first.min_nodes, first.max_nodes, first.nproc_per_node) == (2, 2, 8)
    assert first.rdzv_endpoint == second.rdzv_endpoint and first.rdzv_endpoint.startswith("node-3:")
    assert [config.rdzv_configs["is_host"] for config in (first, second)] == [True, False]
    # What is left of one step does not meet the next one.
    later = launch_config(job, "0.2", "train", "node-4", group)
    assert later.run_id != first.run_id and later.rdzv_endpoint != first.rdzv_endpoint


def test_reports_a_node_without_a_group() -> None:
    with pytest.raises(ValueError, match="node-9 is in none of the groups node-1,node-2"):
        find_group("node-9", ["node-1,node-2"])


def test_a_check_waits_longer_for_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    bare = Slurm(tmp_path).job
    jobs = (bare, replace(bare, image="/fsx/esm2.sqsh"))

    def waits(stage: str = CHECK) -> list[int]:
        configs = [launch_config(job, "0", stage, "node-1", ["node-1"]) for job in jobs]
        return [config.rdzv_configs["join_timeout"] for config in configs]

    assert waits() == [60, 300]
    monkeypatch.setenv(CHECK_MEETING_VARIABLE, "5")
    assert waits() == [5, 5] and waits("train") == [600, 600]


def test_a_first_node_may_come_later_but_not_too_late() -> None:
    with socket.socket() as first:
        first.bind(("localhost", 0))
        endpoint = f"localhost:{first.getsockname()[1]}"
        config = LaunchConfig(2, 2, 1, rdzv_endpoint=endpoint, rdzv_configs={"join_timeout": 0.5})
        with pytest.raises(RendezvousConnectionError, match="refused"):
            wait_for_first(config)
        config.rdzv_configs["join_timeout"] = 60
        threading.Timer(0.5, first.listen).start()
        wait_for_first(config)
