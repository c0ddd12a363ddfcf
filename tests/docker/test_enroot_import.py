"""The import on a worker, with programs on the path that stand in for aws, enroot and unsquashfs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.docker.import_worker import NAME, REFERENCE, REGISTRY, REPOSITORY, SHA, TOKEN, Worker


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path / "worker")


def test_image_is_there_under_its_name(worker: Worker) -> None:
    done = worker.run()
    assert done.returncode == 0, done.stderr
    assert worker.files == [NAME]
    assert done.stdout.splitlines()[-1].endswith(f" in {worker.file}")
    assert worker.file.stat().st_mode & 0o777 == 0o644
    assert f"docker://AWS@{REGISTRY}#{REPOSITORY}:{SHA}\n" in worker.calls


def test_second_import_sends_no_request(worker: Worker) -> None:
    worker.run()
    calls = worker.calls
    second = worker.run()
    assert (second.returncode, second.stdout) == (0, f"{worker.file} is there already\n")
    assert worker.calls == calls


def test_token_is_roots_and_on_no_command_line(worker: Worker) -> None:
    done = worker.run()
    credentials = f"machine {REGISTRY} login AWS password {TOKEN}\n"
    assert (worker.folder / "credentials").read_text() == credentials
    assert (worker.folder / "mode").read_text().strip() == "600"
    assert TOKEN not in worker.calls + done.stdout + done.stderr
    assert (worker.folder / "read").read_text() == ""  # not what is left of the script


@pytest.mark.parametrize(
    ("broken", "contents", "message"),
    [
        ("digest", "sha256:" + "f" * 64, "not sha256:"),
        ("digest", "None", "is not in the registry"),
        ("contents", "half a file", "no superblock; free in "),
        ("contents", "squashfs\nGIT_SHA=another", "nothing was kept"),
        ("enroot_fails", "", "nothing was kept; its last lines say why. free in "),
        ("mount_point", "/", "no shared file system is mounted there"),
    ],
)
def test_what_is_wrong_leaves_nothing_behind(
    worker: Worker, broken: str, contents: str, message: str
) -> None:
    worker.set(broken, contents)
    done = worker.run()
    assert done.returncode == 1
    assert message in done.stderr
    assert worker.files == []


def test_what_dead_imports_left_is_removed(worker: Worker) -> None:
    """A node that dies cleans up nothing; an import that still runs on another node keeps its file."""
    worker.images.mkdir()
    for name, age_hours in (
        (".partial-0123-worker-2-7.sqsh", 3),
        (".partial-0123-worker-3-7.sqsh", 0),
    ):
        (worker.images / name).touch()
        written = time.time() - 3600 * age_hours
        os.utime(worker.images / name, (written, written))
    assert worker.run().returncode == 0
    assert worker.files == [".partial-0123-worker-3-7.sqsh", NAME]


@pytest.mark.parametrize(
    "reference",
    [
        "",
        f"{REGISTRY}/esm2-slurm/training:{SHA}",
        REFERENCE[:-1],
        f"nvcr.io/{REFERENCE}",
        f"{REFERENCE}; true",
    ],
)
def test_other_references_are_refused(worker: Worker, reference: str) -> None:
    done = worker.run(reference)
    assert done.returncode == 1
    assert "as make push prints it" in done.stderr
    assert worker.calls == ""


@pytest.mark.parametrize("file", ["image.sqsh", "/fsx/images", "/image.sqsh"])
def test_other_files_are_refused(worker: Worker, file: str) -> None:
    done = worker.run(file=file)
    assert done.returncode == 1
    assert "must be a path like /fsx/images/<name>.sqsh" in done.stderr
    assert worker.calls == ""


def test_failed_command_is_said(worker: Worker) -> None:
    (worker.folder / "bin/aws").write_text(
        "#!/bin/bash\necho 'Unable to locate credentials' >&2\nexit 255\n"
    )
    done = worker.run()
    assert done.returncode == 1
    assert "only root has the node's credentials" in done.stderr
    assert worker.files == []
