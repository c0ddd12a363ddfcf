"""One command at a time writes a folder, for all users and cache folders together."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from seqlm.training.data import locks, waiting
from seqlm.training.data.workspace import BeingPrepared, workspace
from tests.workloads.training.forked_processes import forked

OTHER_USER = 65534
"""Number of a user without privileges."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/hyperpod-esm2/locks"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user reaches, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextmanager
def as_another_user() -> Iterator[None]:
    if os.getuid() != 0:
        pytest.skip("needs root, to become somebody else for a moment")
    os.seteuid(OTHER_USER)
    try:
        yield
    finally:
        os.seteuid(0)


def is_free(target: Path) -> bool:
    lock = locks.try_lock(target)
    if lock is not None:
        lock.close()
    return lock is not None


def test_the_lock_is_beside_the_target(tmp_path: Path) -> None:
    target = tmp_path / "runs/a/metrics.jsonl"
    lock = locks.try_lock(target)
    assert lock is not None and lock.files == [tmp_path / "runs/a/.locks/metrics.jsonl"]
    assert not is_free(target)
    assert not is_free(tmp_path / "runs/../runs/a/metrics.jsonl"), "another name of the same file"
    assert is_free(tmp_path / "runs/b/metrics.jsonl")
    lock.close()
    assert is_free(target)


def test_another_cache_folder_gives_no_second_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with the same folder mounted has another cache folder."""
    lock = locks.try_lock(tmp_path / "runs/metrics.jsonl")
    assert lock is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert not is_free(tmp_path / "runs/metrics.jsonl")
    lock.close()


@pytest.mark.parametrize("owner_is_first", [True, False])
def test_root_and_the_owner_exclude_each_other(shared: Path, owner_is_first: bool) -> None:
    """The owner has a lock that root sees, and can use locks that root has created."""
    target = shared / "run/metrics.jsonl"
    target.parent.mkdir()
    with as_another_user():
        pass
    os.chown(target.parent, OTHER_USER, OTHER_USER)
    if owner_is_first:
        with as_another_user():
            lock = locks.try_lock(target)
        assert lock is not None and not is_free(target)
    else:
        lock = locks.try_lock(target)
        assert lock is not None
        with as_another_user():
            assert not is_free(target)
    lock.close()
    with as_another_user():
        assert is_free(target) and is_free(target.with_name("another"))


def test_a_lock_that_cannot_be_written_is_locked_with_one_in_the_cache(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = locks.try_lock(shared / "data")
    assert held is not None
    monkeypatch.setenv("XDG_CACHE_HOME", "/tmp/cache-of-another-user")
    with as_another_user():
        assert not is_free(shared / "data"), "another user's file can be locked, not written"
        lock = locks.try_lock(shared / "without a lock file")
        assert lock is not None and not is_free(shared / "without a lock file")
        assert [file.parent for file in lock.files] == [locks.cache_folder() / "locks"]
        lock.close()
    held.close()
    left = shared / ".locks/data"
    left.parent.mkdir()
    left.touch(mode=0o644)  # a process that was killed leaves its lock
    with as_another_user():
        both = locks.try_lock(shared / "data")
        assert both is not None
        assert both.files[0] == shared / ".locks/data" and len(both.files) == 2
        both.close()
        shutil.rmtree(locks.cache_folder().parent)


def test_nothing_planted_is_locked_or_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (tmp_path / "runs/.locks").mkdir(parents=True)
    (tmp_path / "runs/.locks/metrics.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        locks.try_lock(tmp_path / "runs/metrics.jsonl")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.locks").symlink_to(tmp_path)
    with pytest.raises(OSError, match="a link in place of the folder of locks"):
        locks.try_lock(tmp_path / "other/victim")
    assert not victim.exists()


def test_a_file_system_without_locks_is_locked_in_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre mounted without flock is one."""
    flock = fcntl.flock

    def unsupported_beside(descriptor: int, operation: int) -> None:
        if ".locks" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSYS, "Function not implemented")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", unsupported_beside)
    lock = locks.try_lock(tmp_path / "out")
    assert lock is not None and [file.parent for file in lock.files] == [cache]
    assert not is_free(tmp_path / "out")
    lock.close()


def test_five_staggered_processes_prepare_one_folder_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with forked(5, prepare_once, tmp_path / "data/out", log=log) as started:
        assert started.ends() == [0] * 5, started.output
    assert started.output.splitlines().count("prepared") == 1, started.output
    assert (tmp_path / "data/out/whole").read_text() == "01234"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["out"]


def test_nothing_is_left_of_a_lock(tmp_path: Path, cache: Path) -> None:
    first = locks.try_lock(tmp_path / "first")
    second = locks.try_lock(tmp_path / "second")
    assert first is not None and second is not None
    first.close()
    assert [path.name for path in (tmp_path / ".locks").iterdir()] == ["second"]
    second.close()
    assert list(tmp_path.iterdir()) == [] and not cache.exists()


def test_a_lock_whose_file_is_deleted_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder ends between opening and locking, and a third process gets the lock."""
    target = tmp_path / "out"
    held = locks.try_lock(target)
    assert held is not None
    third: list[locks.Lock | None] = []
    flock = fcntl.flock

    def overtaken(descriptor: int, operation: int) -> None:
        if not third:
            held.close()
            third.append(None)
            third.append(locks.try_lock(target))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    assert locks.try_lock(target) is None
    assert third[1] is not None
    third[1].close()
    assert is_free(target)


def test_a_folder_that_is_deleted_with_its_lock_can_be_locked_again(tmp_path: Path) -> None:
    """A user deletes the folder of a run that still ends."""
    target = tmp_path / "run/metrics.jsonl"
    old = locks.try_lock(target)
    assert old is not None
    shutil.rmtree(target.parent)
    new = locks.try_lock(target)
    assert new is not None
    old.close()
    assert not is_free(target), "the old lock deletes nothing of the new one"
    new.close()


def test_four_processes_never_hold_a_lock_together(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with forked(4, take_often, tmp_path / "data/out", log=log) as started:
        assert started.ends() == [0] * 4, started.output
    assert list((tmp_path / "data").iterdir()) == []


def take_often(target: Path) -> None:
    """Take the lock again and again, and create a folder that only its holder may have."""
    for _ in range(200):
        lock = locks.try_lock(target)
        if lock is not None:
            with lock:
                target.mkdir()  # fails if another process is here
                target.rmdir()


def prepare_once(out: Path) -> None:
    """Start a moment after the process before; write slowly, so that the starts meet the writing."""
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
