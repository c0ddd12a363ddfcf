"""Training as users submit it: through the shipped batch script, and through the death of a node."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until
from tests.cluster.training import (
    HOME,
    NUM_STEPS,
    PYTHON,
    SAVE_EVERY,
    job_of,
    log_of,
    run_file,
    submit,
    tool,
    wait_for_end,
)
from tests.workloads.esm2.training_runs import events, losses, start_training
from workloads.esm2.launch.slurm_attempts import newest_checkpoint


def test_a_bad_node_is_excluded_and_the_job_can_be_cancelled(cluster: Cluster, home: Path) -> None:
    """Its Python does not run; Slurm would begin with that node again."""
    bad = cluster.workers[0].hostname
    (home / "python").write_text(
        PYTHON.replace("#!/bin/sh\n", f'#!/bin/sh\n[ "$(hostname)" != {bad} ] || exit 9\n')
    )
    try:
        job = submit(cluster, "name=cancelled", "train.max_steps=1000000")
        log = log_of(cluster, job)
        wait_until(lambda: log.exists() and "start 2" in log.read_text(), "the second start", seconds=120)
        assert (
            f"node {bad} is not fit and is left out from now on: {HOME}/python does not run"
            in log.read_text()
        )
        found = job_of(cluster, job["job"])
        assert found["ExcNodeList"] == bad and bad not in found["NodeList"]
        assert "is asked to save" in tool(cluster, "tools.jobs", "cancel", job["job"])
        wait_for_end(cluster, job["job"], log, "CANCELLED")
        assert f"job {job['job']}  run cancelled" in tool(cluster, "tools.jobs", "status")
    finally:
        (home / "python").write_text(PYTHON)
        cluster.wait_for_slurm()


def test_a_dead_node_costs_steps_and_nothing_else(
    cluster: Cluster, lifecycle: Lifecycle, home: Path, tmp_path: Path, prepared: Path, tiny_model: Path
) -> None:
    broken = submit(cluster, "name=broken")
    run_dir, log = home / "runs" / "broken", log_of(cluster, broken)
    wait_until(lambda: newest_checkpoint(run_dir) >= SAVE_EVERY, "a checkpoint", seconds=120)
    nodes = job_of(cluster, broken["job"])["NodeList"]
    names = cluster.controller.run(["scontrol", "show", "hostnames", nodes]).output.split()
    lost = next(worker for worker in cluster.workers if worker.hostname == names[-1])
    cluster.kill(lost)
    try:
        # Meanwhile the same run here, without Slurm and without an interruption.
        for name, folder in (("data", prepared), ("tiny", tiny_model)):
            (tmp_path / name).symlink_to(folder)
        (tmp_path / "whole.yaml").write_text(run_file(str(tmp_path), f"{tmp_path}/runs"))
        whole = start_training(f"--config={tmp_path}/whole.yaml", processes=2)
        said, _ = whole.communicate(timeout=240)
        assert whole.returncode == 0, said
        found = wait_for_end(cluster, broken["job"], log)
    finally:
        repaired = lifecycle.run(cluster.replace(lost))
    assert repaired.status == 0, repaired.output
    cluster.wait_for_slurm()
    assert found["Restarts"] == "1" and lost.hostname not in found["NodeList"], found
    assert "resumed" in events(run_dir), log.read_text()
    # The same numbers to the last bit, each step once.
    assert losses(run_dir) == losses(tmp_path / "runs" / "whole")
    assert len(losses(run_dir)) == NUM_STEPS
    assert json.loads((run_dir / "all_results.json").read_text())["world_size"] == 2
    report = cluster.shared / Path(broken["report"]).relative_to("/fsx")
    assert "<svg" in report.read_text()
