"""One command at a time writes a folder, whether or not its lock is in the cache folder."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest import mock

import pytest

from seqlm.training.data import locks, waiting
from seqlm.training.data.workspace import BeingPrepared, workspace
from tests.workloads.training.forked_processes import forked


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/hyperpod-esm2/locks"


def test_a_lock_in_a_folder_of_ones_own_is_in_the_cache(tmp_path: Path, cache: Path) -> None:
    lock = locks.try_lock(tmp_path / "runs/a/metrics.jsonl")
    assert lock is not None and Path(lock.name).parent == cache
    assert list((tmp_path / "runs/a").iterdir()) == []
    assert locks.try_lock(tmp_path / "runs/../runs/a/metrics.jsonl") is None, (
        "another name of the same file"
    )
    with locks.try_lock(tmp_path / "runs/b/metrics.jsonl") as other:  # type: ignore[union-attr]
        assert other is not None
    lock.close()
    with locks.try_lock(tmp_path / "runs/a/metrics.jsonl") as again:  # type: ignore[union-attr]
        assert again is not None


@pytest.mark.parametrize(
    "reason", ["network", "shared with a group", "shared with everyone", "no cache"]
)
def test_a_lock_that_others_must_see_is_beside_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    match reason:
        case "network":
            monkeypatch.setattr(locks, "_LOCAL_FILE_SYSTEMS", set())
        case "shared with a group":
            folder.chmod(0o770)
            monkeypatch.setattr(os, "getegid", lambda: folder.stat().st_gid + 1)
        case "shared with everyone":
            folder.chmod(0o777)
        case "no cache":
            monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    lock = locks.try_lock(folder / "uniref50")
    assert lock is not None and Path(lock.name) == folder / ".locks/uniref50"
    assert locks.try_lock(folder / "uniref50") is None
    lock.close()


@pytest.mark.parametrize("is_local", [True, False])
def test_five_staggered_processes_prepare_one_folder_once(tmp_path: Path, is_local: bool) -> None:
    log = tmp_path / "log"
    with forked(5, prepare_once, tmp_path / "data/out", is_local, log=log) as started:
        assert started.ends() == [0] * 5, started.output
    assert started.output.splitlines().count("prepared") == 1, started.output
    assert (tmp_path / "data/out/whole").read_text() == "01234"
    hidden = [] if is_local else [".locks"]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [*hidden, "out"]


def prepare_once(out: Path, is_local: bool) -> None:
    """Start a moment after the process before; write slowly, so that the starts meet the writing."""
    if not is_local:
        locks._LOCAL_FILE_SYSTEMS.clear()
    time.sleep(0.15 * int(os.environ["RANK"]))

    def prepare() -> None:
        with workspace(out) as folder:
            for digit in range(5):
                with (folder / "whole").open("a") as file:
                    file.write(str(digit))
                time.sleep(0.05)
        print("prepared", flush=True)

    with mock.patch.object(waiting, "POLL_SECONDS", 0.05):
        waiting.once(out.exists, prepare, "waiting")


def test_a_folder_completed_by_another_process_is_left_alone(tmp_path: Path) -> None:
    """The other process may end while this one still reads its input."""
    with workspace(tmp_path / "out") as folder:
        (folder / "x").write_text("first")
    with pytest.raises(BeingPrepared, match="has completed"), workspace(tmp_path / "out"):
        pass
    assert (tmp_path / "out/x").read_text() == "first"
    assert not (tmp_path / ".out.partial").exists()
