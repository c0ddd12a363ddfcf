"""Folder of a job in a node's memory: who may use it, when it is deleted, and restarts in place."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from seqlm.launch.node_memory import NodeMemory, node_memory
from seqlm.launch.torchrun import Ending
from seqlm.training.command_line import STOPPED_BY_SIGNAL, USAGE_ERROR
from seqlm.training.memory import job_folder
from seqlm.training.memory.job_folder import (
    LEFTOVER_SECONDS,
    MEMORY_FOLDER,
    held,
    newest_step,
    path_of,
    remove_leftovers,
)

KILLED = Ending(137, 1, 0.0)


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in place of /dev/shm."""
    monkeypatch.setattr(job_folder, "IN_MEMORY", tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv(MEMORY_FOLDER, "")
    return tmp_path


def add_state(folder: Path, step: int, piece: str = "shard-00000-part-000") -> None:
    (folder / f"step-{step:08d}" / piece).mkdir(parents=True)


def test_only_its_user_may_read_the_folder(in_memory: Path) -> None:
    with node_memory("train", "node-1", in_memory / "message") as memory:
        assert memory is not None
        folder = Path(os.environ[MEMORY_FOLDER])
        assert folder == path_of("12") and folder.parent == in_memory
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("stage", ["check", "predict", "evaluate", "train-bionemo"])
def test_other_stages_have_no_folder(in_memory: Path, stage: str) -> None:
    with node_memory(stage, "node-1", in_memory / "message") as memory:
        assert memory is None and list(in_memory.iterdir()) == []


def test_a_folder_of_others_is_refused(in_memory: Path) -> None:
    folder = path_of("12")
    folder.mkdir(mode=0o755)
    found = r"with mode 700, got one of user .* with mode 755"
    with pytest.raises(ValueError, match=found), held(folder):
        pass
    folder.rmdir()
    folder.symlink_to(in_memory)
    with pytest.raises(ValueError, match="expected a folder of user"), held(folder):
        pass


def test_leftovers_are_deleted_unless_a_job_holds_or_used_them(in_memory: Path) -> None:
    long_ago = time.time() - 2 * LEFTOVER_SECONDS
    for job in ("1", "2", "3"):
        with held(path_of(job)):
            add_state(path_of(job), 5)
    for job in ("1", "2"):
        os.utime(path_of(job), (long_ago, long_ago))
    (in_memory / "seqlm-other").mkdir()
    with held(path_of("2")):
        os.utime(path_of("2"), (long_ago, long_ago))
        remove_leftovers()
    assert {path.name for path in in_memory.iterdir()} == {
        path_of("2").name,
        path_of("3").name,
        "seqlm-other",
    }


def test_a_crash_restarts_in_place_once_per_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = tmp_path / "message"
    folder = tmp_path / "memory"
    add_state(folder, 5)
    memory = NodeMemory(folder, "node-1", message)
    assert not memory.may_restart(KILLED), "no state since the start"
    add_state(folder, 10, "shard-00000-part-000.partial")
    assert newest_step(folder) == 5 and not memory.may_restart(KILLED)
    add_state(folder, 10)
    message.write_text("out of memory\n")
    assert not memory.may_restart(Ending(USAGE_ERROR, 1, 0.0))
    assert memory.may_restart(KILLED) and not message.exists()
    memory.restarted()
    assert capsys.readouterr().out == (
        "node-1, process 1: status 137 out of memory; the processes start again in place, because a state of "
        "step 10 is in memory\n"
    )
    assert not memory.may_restart(KILLED)


@pytest.mark.parametrize(
    ("status", "has_state", "stays"),
    [
        (0, True, False),
        (USAGE_ERROR, True, False),
        (STOPPED_BY_SIGNAL, False, False),
        (STOPPED_BY_SIGNAL, True, True),
        (137, True, True),
    ],
)
def test_the_folder_stays_for_a_start_that_reads_it(
    tmp_path: Path, status: int, has_state: bool, stays: bool
) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    if has_state:
        add_state(folder, 5)
    NodeMemory(folder, "node-1", tmp_path / "message").end(Ending(status, 0, 0.0))
    assert folder.exists() == stays
