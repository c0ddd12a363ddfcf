"""The supervisor leaves out a node whose hardware the run reports as unfit, if another one can replace it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqlm.launch.slurm_attempts import read_state
from seqlm.training.health.unfit_nodes import UNFIT_FILE, report_unfit
from tests.workloads.launch.slurm_stand_ins import Slurm

REASON = "process 9 (node node-2, GPU 1) has been slow for 180 s"


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    return Slurm(tmp_path)


def reporting(slurm: Slurm, **step: Any) -> dict[str, Any]:
    """Step of a run that reports the second node."""
    path = f"{slurm.job.run_dir}/{UNFIT_FILE}"
    return {"files": {path: json.dumps({"node-2": REASON})}, **step}


@pytest.mark.long
def test_a_slow_node_is_left_out_once_the_run_has_saved(slurm: Slurm) -> None:
    """The step runs until it gets SIGTERM."""
    saved = {"node-1": {"status": 143, "message": "saved"}}
    status, output = slurm.run(reporting(slurm, wait=True, status=0, endings=saved))
    assert status == 0, output
    assert f"node node-2 is not fit: {REASON}" in output
    assert "left out from now on: node-2" in output and "done" not in output
    assert ["--quiet", "--signal=TERM", "7"] in slurm.said_to("scancel")
    assert slurm.said_to("scontrol") == [
        ["requeue", "7"],
        ["update", "JobId=7", "ExcNodeList=node-2"],
    ]
    assert read_state(slurm.job_folder).excluded == ("node-2",)


def test_a_node_that_spoilt_a_step_is_left_out(slurm: Slurm) -> None:
    failed = {"node-2": {"status": 1, "rank": 9, "message": "error: step 7: loss nan"}}
    status, output = slurm.run(reporting(slurm, status=1, endings=failed))
    assert status == 0 and "left out from now on: node-2" in output
    assert "crash 1" not in output
    assert read_state(slurm.job_folder).excluded == ("node-2",)


def test_without_another_node_the_job_continues_on_it(slurm: Slurm) -> None:
    slurm.job = replace(slurm.job, min_nodes=3)
    failed = {"node-2": {"status": 1, "rank": 9, "message": "error: step 7: loss nan"}}
    status, output = slurm.run(reporting(slurm, status=1, endings=failed), {"status": 0})
    assert status == 0 and "done" in output and "crash 1 of 3" in output
    assert "it stays in use: the partition has only 2 others, the job needs 3" in output
    assert read_state(slurm.job_folder).excluded == ()


def test_a_run_that_is_done_is_not_requeued(slurm: Slurm) -> None:
    status, output = slurm.run(reporting(slurm, status=0))
    assert status == 0 and "done" in output
    assert not slurm.said_to("scontrol")


def test_a_report_of_an_earlier_attempt_does_not_count(slurm: Slurm) -> None:
    report_unfit(Path(slurm.job.run_dir), {"node-2": REASON})
    failed = {"node-1": {"status": 1}}
    status, output = slurm.run({"status": 1, "endings": failed}, {"status": 0})
    assert status == 0 and "not fit" not in output
