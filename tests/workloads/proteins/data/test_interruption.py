"""A run that is stopped, killed or out of disk leaves nothing that looks whole."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from seqlm.proteins.data.job import Job, worker_pool
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.training.command_line import RunError
from seqlm.training.data.manifest import Manifest
from seqlm.training.data.workspace import check_free_space, workspace
from seqlm.training.report.page import size_text

ROOT = Path(__file__).parents[4]
# Prepares a pipe: it reads what was sent so far and then waits, in the middle of its work, for more.
SCRIPT = """
import sys
from pathlib import Path
from seqlm.training.command_line import one_line_errors
from seqlm.training.data.limits import Limits
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
if __name__ == "__main__":
    limits = Limits(block_bytes=2000, piece_bytes=3000)
    paths = [Path(sys.argv[1]), Path(sys.argv[2])]
    import seqlm.proteins.data.prepare as module
    module.text_bytes_of = lambda path: 100_000
    fractions = dict(validation_fraction=0, test_fraction=0)
    with one_line_errors():
        execution = Execution(workers=2, limits=limits)
        prepare(ProteinFiles(paths), Path(sys.argv[3]), seed=0, execution=execution, **fractions)
"""


def start_and_stall(folder: Path, source: Path) -> tuple[subprocess.Popen[str], int]:
    """A run that has spilled records of the source and waits for its second file; the pipe's open end."""
    pipe = folder / "pipe.fasta"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(source), str(pipe), str(folder / "out")],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        # A shell's background job ignores Ctrl-C, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    sending = os.open(
        pipe, os.O_WRONLY
    )  # returns when the run opens the pipe, so after the first file
    deadline = time.monotonic() + 240
    while not list(folder.glob(".out.partial/spill/records-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    return process, sending


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Processes started by a process, directly or not."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = {process.pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {process.pid})


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 240
    while any(running(pid) for pid in pids):
        assert time.monotonic() < deadline, "worker processes outlived the run"
        time.sleep(0.05)


def running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run_cleans_up(tmp_path: Path, proteins, write_fasta, number: int) -> None:
    process, sending = start_and_stall(tmp_path, write_fasta(tmp_path / "a.fasta", proteins(300)))
    workers = workers_of(process)
    assert (tmp_path / ".out.partial").is_dir()
    process.send_signal(number)
    _, messages = process.communicate(timeout=240)
    os.close(sending)
    assert process.returncode == 128 + number, messages
    last = messages.rstrip("\n").split("\n")[-1]
    assert "Traceback" not in messages
    assert (
        number == signal.SIGTERM
        or last == "stopped by Ctrl-C; run the same command again to continue"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.fasta", "pipe.fasta"]
    wait_until_gone(workers)


def test_killed_run_is_started_over(tmp_path: Path, proteins, write_fasta) -> None:
    source = write_fasta(tmp_path / "a.fasta", proteins(300))
    source.write_text(">bad\nMK*V\n" + source.read_text())
    process, sending = start_and_stall(tmp_path, source)
    workers = workers_of(process)
    assert workers
    process.kill()
    process.communicate(timeout=240)
    os.close(sending)
    assert (tmp_path / ".out.partial").is_dir()
    assert not (tmp_path / "out").exists()
    wait_until_gone(workers)
    manifest = prepare(
        ProteinFiles([source]),
        tmp_path / "out",
        seed=0,
        validation_fraction=0,
        test_fraction=0,
        execution=Execution(progress=False),
    )
    assert manifest.records == 300
    assert manifest.rejected == {"inner stop": 1}
    assert (tmp_path / "out" / "rejects.csv").read_text().count("\n") == 2
    assert Manifest.load(tmp_path / "out") == manifest
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.fasta",
        "out",
        "pipe.fasta",
    ]


def test_second_run_into_the_same_folder_is_refused(tmp_path: Path) -> None:
    with workspace(tmp_path / "out") as folder:
        (folder / "x").write_text("first")
        with (
            pytest.raises(ValueError, match="another process is preparing"),
            workspace(tmp_path / "out"),
        ):
            pass
        assert (folder / "x").exists()
    assert (tmp_path / "out" / "x").read_text() == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a small file system needs root: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_full_disk_is_a_clear_error(tmp_path: Path, small_disk: Path, workers: int) -> None:
    # Repetitive text packs a hundredfold, so that the estimate made from the gzip's size does not catch it.
    source = tmp_path / "a.fasta.gz"
    to_residues = str.maketrans("01", "LA")
    bodies = (f"{'MKVLAGG' * 20}{number:b}".translate(to_residues) for number in range(40_000))
    text = "".join(f">r{number}\n{body}\n" for number, body in enumerate(bodies))
    source.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(
        ValueError, match=r"disk of .* filled up .* choose a data.path on another disk"
    ):
        prepare(
            ProteinFiles([source]),
            small_disk / "out",
            seed=0,
            validation_fraction=0,
            test_fraction=0,
            execution=Execution(workers=workers, progress=False),
        )
    assert [path.name for path in small_disk.iterdir()] == []


def test_disk_is_checked_before_the_start(
    tmp_path: Path, small_disk: Path, proteins, write_fasta
) -> None:
    source = write_fasta(tmp_path / "a.fasta", proteins(5000, longest=800))
    with pytest.raises(
        ValueError, match=r"needs about .* MiB of disk.* free there; free space or choose"
    ):
        prepare(
            ProteinFiles([source]),
            small_disk / "out",
            seed=0,
            validation_fraction=0,
            test_fraction=0,
            execution=Execution(progress=False),
        )
    assert list(small_disk.iterdir()) == []


def test_space_is_checked_where_it_is_needed(small_disk: Path) -> None:
    """A result is made beside its place, and so on the file system of the folder above."""
    check_free_space(small_disk, 5 << 20)
    with pytest.raises(ValueError, match="MiB of disk"):
        check_free_space(small_disk / "out", 5 << 20)


def test_reports_a_killed_worker() -> None:
    with (
        worker_pool(2) as pool,
        ExitStack() as bars,
        pytest.raises(RunError, match="a worker process was killed from outside"),
    ):
        list(Job(9, pool, 1, False, bars).run(os._exit, [()]))


def test_sizes_are_readable(tmp_path: Path) -> None:
    assert [size_text(n) for n in (10, 1536, 5 << 30)] == ["10 B", "1.5 KiB", "5 GiB"]
    with pytest.raises(ValueError, match="TiB of disk"):
        check_free_space(tmp_path / "not" / "yet", 1 << 50)
