"""Training as users submit it, with the shipped batch script, on a node that is not fit."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.patience import wait_until
from tests.cluster.training import HOME, PYTHON, job_of, log_of, submit, tool, wait_for_end


def test_a_bad_node_is_excluded_and_the_job_can_be_cancelled(cluster: Cluster, home: Path) -> None:
    """Its Python does not run; Slurm would begin with that node again."""
    bad = cluster.workers[0].hostname
    (home / "python").write_text(
        PYTHON.replace("#!/bin/sh\n", f'#!/bin/sh\n[ "$(hostname)" != {bad} ] || exit 9\n')
    )
    try:
        job = submit(cluster, "name=cancelled", "train.max_steps=1000000")
        log = log_of(cluster, job)
        wait_until(
            lambda: log.exists() and "start 2" in log.read_text(), "the second start", seconds=240
        )
        assert (
            f"node {bad} is not fit and is left out from now on: {HOME}/python does not run"
            in log.read_text()
        )
        found = job_of(cluster, job["job"])
        assert found["ExcNodeList"] == bad and bad not in found["NodeList"]
        assert "saves and ends" in tool(cluster, "tools.jobs", "cancel", job["job"])
        wait_for_end(cluster, job["job"], log, "CANCELLED")
        # Its processes have hardly come to their first step, or there is something to save.
        assert re.search(
            r"(ended|saved) on SIGUSR2; the newest checkpoint is of step \d+\n", log.read_text()
        )
        assert f"job {job['job']}  run cancelled" in tool(cluster, "tools.jobs", "status")
    finally:
        (home / "python").write_text(PYTHON)
        cluster.wait_for_slurm()
