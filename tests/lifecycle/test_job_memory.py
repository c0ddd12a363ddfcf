"""Folders of ended jobs in a node's memory are deleted, and those of jobs that may start again stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collectors import job_memory
from node_setup.service import FOLDER
from node_setup.steps import job_memory as step
from seqlm.training.memory import job_folder
from tests.lifecycle.node import StandIns, node_of
from tests.lifecycle.services import Services, services

__all__ = ["services"]
UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
NO_ANSWER = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in place of /dev/shm, on a node on which no job runs."""
    folder = tmp_path / "shm"
    folder.mkdir()
    (tmp_path / "proc").mkdir()
    monkeypatch.setattr(job_memory, "IN_MEMORY", folder)
    monkeypatch.setattr(job_folder, "IN_MEMORY", folder)
    monkeypatch.setattr(job_memory, "PROCESSES", tmp_path / "proc")
    return folder


def folder_of(job: str) -> Path:
    """Folder that a job has left, with a state."""
    folder = job_folder.path_of(job)
    with job_folder.held(folder):
        (folder / "step-00000005/shard-00000-part-000").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("answer", "stays"),
    [
        ("echo CANCELLED", False),
        ("echo NODE_FAIL", False),
        (UNKNOWN, False),
        (NO_ANSWER, True),
        ("echo PENDING", True),
        ("echo COMPLETING", True),
        ("true", True),
    ],
)
def test_a_folder_stays_until_its_job_has_ended(
    in_memory: Path, stand_ins: StandIns, answer: str, stays: bool
) -> None:
    folder = folder_of("12")
    stand_ins.command("squeue", answer)
    job_memory.main()
    assert folder.exists() == stays
    assert stand_ins.calls == ["squeue --noheader --states=all --jobs=12 --format=%T"]


def test_slurm_is_not_asked_about_a_job_that_runs_here(
    in_memory: Path, stand_ins: StandIns
) -> None:
    here = folder_of("12")
    other = folder_of("1")
    (job_memory.PROCESSES / "77").mkdir()
    (job_memory.PROCESSES / "77/cmdline").write_text("slurmstepd: [12.extern]\0")
    stand_ins.command("squeue", "echo COMPLETED")
    job_memory.main()
    assert here.exists() and not other.exists()
    assert len(stand_ins.calls) == 1


def test_nothing_but_a_folder_of_the_named_user_is_deleted(
    in_memory: Path, stand_ins: StandIns, tmp_path: Path
) -> None:
    stand_ins.command("squeue", "echo COMPLETED")
    (tmp_path / "kept").mkdir()
    job_folder.path_of("1").symlink_to(tmp_path / "kept")
    (in_memory / f"seqlm-{os.geteuid() + 1}-2").mkdir()
    (in_memory / "seqlm-other").mkdir()
    inside = folder_of("3") / "step-00000010"
    inside.symlink_to(tmp_path / "kept")
    (tmp_path / "kept/file").touch()
    job_memory.main()
    assert len(list(in_memory.iterdir())) == 3 and (tmp_path / "kept/file").exists()


def test_the_step_starts_the_timer_once(tmp_path: Path, services: Services) -> None:
    node = node_of(tmp_path)
    step.install(node)
    assert node.host.path(f"{FOLDER}/job_memory.py").is_file()
    assert services.restarts == [step.TIMER]
    node.changes = []
    step.install(node)
    assert node.changes == []
