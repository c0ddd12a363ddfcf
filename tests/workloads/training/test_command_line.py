"""Errors of files and devices end in one line: the file, what is wrong, what to do."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import load
from torch.distributed.checkpoint.api import CheckpointException

from seqlm.commands.prepare import main as prepare_data
from seqlm.runs.run_file import run_stage
from seqlm.training.command_line import ERROR_FILE, importing, one_line_errors, tell

REPOSITORY = Path(__file__).parents[3]
PACKAGE = REPOSITORY / "workloads/seqlm"
NOBODY = 65534
PROTEINS = "".join(f">p{number}\nMKVLA{'GILVMK' * number}\n" for number in range(60))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        (Path(name) / "a.fasta").write_text(PROTEINS)
        (Path(name) / "run.yaml").write_text("train:\n")
        yield Path(name)


Ending = tuple[int, str]


@pytest.fixture
def ending_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Ending]:
    """Prepare data by the command line; the exit status and stderr."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv(ERROR_FILE, raising=False)

    def run(folder: Path, *overrides: str) -> Ending:
        monkeypatch.chdir(folder)
        if not any(text.startswith("data.source") for text in overrides):
            overrides = ("data.source=a.fasta", *overrides)
        monkeypatch.setattr("sys.argv", ["data", "--config", "run.yaml", *overrides])
        with pytest.raises(SystemExit) as ended:
            run_stage(prepare_data)
        return ended.value.code, capfd.readouterr().err

    return run


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Root may read and write everything; user nobody may not."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    yield
    if is_root:
        os.seteuid(0)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount something on a new folder."""
    points: list[Path] = []

    def mount(folder: Path, *options: str) -> Path:
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", *options, str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mounting needs root: {done.stderr.strip()}")
        points.append(folder)
        return folder

    yield mount
    for point in reversed(points):
        subprocess.run(["umount", str(point)], check=True)


def only_error(ending: Ending, status: int) -> str:
    """The error, which is one line and the last one; nothing is left behind."""
    assert ending[0] == status, ending[1]
    *before, last = ending[1].rstrip("\n").split("\n")
    assert last.startswith("error: ") and "Traceback" not in ending[1], ending[1]
    assert not any(line.startswith("error") for line in before)
    return last.removeprefix("error: ")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_unreadable_file(folder: Path, ending_of, as_nobody: None) -> None:
    with_privileges(lambda: (folder / "a.fasta").chmod(0))
    told = only_error(ending_of(folder), 1)
    assert told == (
        "a.fasta: Permission denied; change its permissions or those of its folder (ls -ld), or name "
        "another place"
    )


def test_an_unreadable_file_in_a_folder(folder: Path, ending_of, as_nobody: None) -> None:
    def make() -> None:
        (folder / "in").mkdir(mode=0o755)
        (folder / "in/a.fasta").write_text(PROTEINS)
        (folder / "in/b.fasta").write_text(PROTEINS)
        (folder / "in/b.fasta").chmod(0)

    with_privileges(make)
    assert only_error(ending_of(folder, "data.source=in"), 1).startswith(
        "in/b.fasta: Permission denied; "
    )


def test_an_unreadable_source_folder(folder: Path, ending_of, as_nobody: None) -> None:
    with_privileges(lambda: (folder / "in").mkdir(mode=0))
    assert only_error(ending_of(folder, "data.source=in"), 1).startswith("in: Permission denied; ")


def test_a_parent_that_cannot_be_written(folder: Path, ending_of, as_nobody: None) -> None:
    told = only_error(ending_of(folder, "data.path=out"), 2)
    assert told == (
        "out cannot be created (.locks: Permission denied); choose another data.path, in a folder of yours"
    )
    told = only_error(ending_of(folder, "data.path=new/out"), 2)
    assert told.startswith("new/out cannot be created (new: Permission denied)")


def test_an_unreadable_output_folder(folder: Path, ending_of, as_nobody: None) -> None:
    with_privileges(lambda: (folder / "out").mkdir(mode=0))
    told = only_error(ending_of(folder, "data.path=out"), 1)
    assert told.startswith("out/manifest.json: Permission denied; ")


def with_privileges(action: Callable[[], object]) -> None:
    """Do it as the user that runs the tests."""
    effective = os.geteuid()
    os.seteuid(os.getuid())
    action()
    os.seteuid(effective)


def test_a_read_only_file_system(folder: Path, ending_of, mounted) -> None:
    mounted(folder / "disk", "-t", "tmpfs", "-o", "ro", "none")
    told = only_error(ending_of(folder, "data.path=disk/out"), 2)
    assert told.startswith(
        "disk/out cannot be created (disk/.out.partial: Read-only file system); choose another"
    )


@pytest.mark.parametrize(
    ("override", "status", "message"),
    [
        (
            "data.path=/dev/null/x",
            2,
            "/dev/null/x cannot be created (/dev/null: File exists); choose another",
        ),
        (
            f"data.path={'a' * 300}",
            1,
            f"{'a' * 300}/manifest.json: File name too long; use a shorter name",
        ),
        (
            f"data.path={'a' * 252}",
            2,
            f"(.{'a' * 252}.partial: File name too long); choose another",
        ),
        (f"data.source={'a' * 300}", 1, f"{'a' * 300}: File name too long; use a shorter name"),
        (
            "data.source=/proc/self/mem",
            1,
            "/proc/self/mem: Input/output error; check the disk or the network",
        ),
        (
            "data.source=[a.fasta, '/proc/self/mem']",
            1,
            "/proc/self/mem: Input/output error; check the disk",
        ),
        (
            "data.path=.",
            2,
            ". is a mount point or has no name; choose a folder below it as data.path",
        ),
        ("data.path=a.fasta/..", 2, ".. is a mount point or has no name; choose a folder below it"),
        ("data.path=/proc", 2, "/proc is a mount point or has no name; choose a folder below it"),
    ],
)
def test_places_that_cannot_be_used(
    folder: Path, ending_of, override: str, status: int, message: str
) -> None:
    assert message in only_error(ending_of(folder, override), status)
    assert names(folder) == ["a.fasta", "run.yaml"]


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is read fails the test: links and mount points are to be found before."""

    def fail(*arguments: object, **keywords: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr("seqlm.proteins.data.prepare.fetch", fail)


@pytest.mark.parametrize("exists", [True, False], ids=["link", "dangling"])
def test_a_link_is_found_before_the_work(
    folder: Path, ending_of, no_work: None, exists: bool
) -> None:
    if exists:
        (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    told = only_error(ending_of(folder, "data.path=link"), 2)
    assert told == "link is a link to real; give that folder itself as data.path"


@pytest.mark.parametrize(
    "options", [("-t", "tmpfs", "none"), ("--bind", "real")], ids=["tmpfs", "bind"]
)
def test_a_mount_point_is_found_before_the_work(
    folder: Path,
    ending_of,
    mounted,
    no_work: None,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    (folder / "real").mkdir()
    monkeypatch.chdir(folder)
    mounted(folder / "a volume", *options)
    told = only_error(ending_of(folder, "data.path=a volume"), 2)
    assert told == "a volume is a mount point or has no name; choose a folder below it as data.path"


def test_prepared_data_are_read_through_links_and_mounts(
    folder: Path, ending_of, mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(
        "sys.argv", ["data", "--config", "run.yaml", "data.source=a.fasta", "data.path=out"]
    )
    run_stage(prepare_data)
    (folder / "link").symlink_to("out")
    mounted(folder / "volume", "--bind", str(folder / "out"))
    for place in ("link", "volume"):
        monkeypatch.setattr("sys.argv", [*sys.argv[:-1], f"data.path={place}"])
        run_stage(prepare_data)


def test_the_error_follows_the_progress_bar(folder: Path, ending_of) -> None:
    (folder / "a.fasta").write_text(PROTEINS + ">bad\nMK1\n" * 11)
    status, told = ending_of(folder)
    assert status == 2
    error = told[told.index("error: ") :]
    assert error.startswith("error: 11 of 71 records cannot be used; allowed are 10 ")
    assert "a.fasta:122: '1' in record bad is not a residue" in error


def test_control_characters_do_not_reach_the_terminal(folder: Path, ending_of) -> None:
    (folder / "a.fasta").write_bytes(b">\x1b[31mEVIL\x07 x\nMK1\n")
    status, told = ending_of(folder, "data.path=out")
    assert "none of its 1 records can be used" in told
    assert status == 2 and r"the id '\x1b[31mEVIL\x07' is not UTF-8 text or has control" in told
    status, told = ending_of(folder, "data.path=\x1b[2J", "data.source=\x9b31m\u202e")
    assert status == 2 and not set("\x1b\x07\x9b\u202e") & set(told)


def test_a_message_keeps_its_lines(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.delenv(ERROR_FILE, raising=False)
    tell("two\nlines of ä\ttext\x1b\udcff")
    assert capsys.readouterr().err == "two\nlines of ä\\ttext\\x1b\\udcff\n"


def damaged_weights() -> None:
    load(b"\xff" * 16)


def damaged_pickle() -> None:
    pickle.loads(b"nothing")


def deep_json() -> None:
    json.loads("[" * 100_000)


def checkpoint_of_a_full_disk() -> None:
    error = OSError(errno.ENOSPC, "No space left on device", "/x/y")
    raise CheckpointException("save", {0: (error, [])})  # type: ignore[dict-item]


def full_disk() -> None:
    with Path("/dev/full").open("w") as file:
        file.write("x")


def rename_to_another_disk() -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link", "/x/a", None, "/y/b")


def weights_of_another_shape() -> None:
    import torch

    torch.nn.Linear(2, 2).load_state_dict({"weight": torch.zeros(3, 2), "bias": torch.zeros(2)})


def connection_lost(text: str, error_name: str = "") -> Callable[[], None]:
    """Return a function that fails as a collective operation does when another process has ended.

    Args:
        text: message of the error.
        error_name: name of the error's class in ``torch.distributed``; empty for RuntimeError.
    """

    def fail() -> None:
        import torch.distributed

        kind = getattr(torch.distributed, error_name) if error_name else RuntimeError
        raise kind(text)

    return fail


def interrupted() -> None:
    raise KeyboardInterrupt


FAILURES: list[tuple[Callable[[], None], int, str]] = [
    (
        damaged_weights,
        1,
        "error: a file of the model or checkpoint is damaged: .*; copy or write it again",
    ),
    (
        damaged_pickle,
        1,
        "error: a file of the model or checkpoint is damaged: .*; copy or write it again",
    ),
    (
        weights_of_another_shape,
        1,
        "error: a file of the model .* damaged: .*size mismatch.*write it again",
    ),
    (deep_json, 1, "error: a JSON file is nested too deeply to be read; write it again"),
    (
        checkpoint_of_a_full_disk,
        1,
        "error: /x/y: No space left on device; free space or name a place .*",
    ),
    (full_disk, 1, "error: No space left on device; free space or name a place on another disk"),
    (
        rename_to_another_disk,
        1,
        "error: /x/a and /y/b: Invalid cross-device link; correct this and run .*",
    ),
    (
        connection_lost(
            "[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:17330. This is "
            "typically caused by a remote worker crashing. Check the logs of the remote worker"
        ),
        1,
        "error: another process of the run has ended, or the network to it is broken; see the log of that "
        "process. Here: ./x/gloo/transport/tcp/pair.cc:553. Connection closed by peer .10.0.0.1.:17330",
    ),
    (
        connection_lost(
            "NCCL error in: /x/ProcessGroupNCCL.cpp:3763, remote process exited or there was a network "
            "error, NCCL version 2.28.8\nncclRemoteError: A call failed possibly due to a network error or "
            "a remote process exiting prematurely.\nLast error:\nNET/OFI Request completed with error",
            "DistBackendError",
        ),
        1,
        "error: another process of the run has ended, .* ncclRemoteError: .* completed with error",
    ),
    (interrupted, 130, "stopped by Ctrl-C; run the same command again to continue"),
]


@pytest.mark.parametrize(
    ("fail", "status", "message"), FAILURES, ids=lambda value: getattr(value, "__name__", "")
)
def test_known_failures_are_one_line(
    fail: Callable[[], None],
    status: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ERROR_FILE, raising=False)
    with pytest.raises(SystemExit) as ended, one_line_errors():
        fail()
    assert ended.value.code == status
    assert re.fullmatch(message + "\n", capsys.readouterr().err)
    # One of several processes leaves it to the launcher, unless another one has failed before.
    file = tmp_path / "message"
    monkeypatch.setenv(ERROR_FILE, str(file))
    for _ in range(2):
        with pytest.raises(SystemExit), one_line_errors():
            fail()
        assert re.fullmatch(message, file.read_text())
        file.write_text(message)
    assert capsys.readouterr().err == ""


def test_safetensors_raises_what_is_known_by_name() -> None:
    with pytest.raises(SafetensorError):
        damaged_weights()


def recursion() -> None:
    recursion()


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a"),
        TypeError("b"),
        AssertionError("c"),
        RuntimeError("NCCL error, ncclUnhandledCudaError: Call to CUDA function failed."),
        None,
    ],
)
def test_faults_of_the_project_keep_their_traceback(
    error: Exception | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ERROR_FILE, raising=False)
    with pytest.raises(SystemExit) as ended, one_line_errors():
        if error is None:
            recursion()
        else:
            raise error
    told = capsys.readouterr().err
    assert ended.value.code == 1
    assert told.startswith("Traceback") and (type(error or RecursionError()).__name__) in told


UNMAPPED = {
    "bionemo/installed.py": "a check while an image is built",
    "launch/hyperpod_agent.py": "starts NVIDIA's or HyperPod's agent, which reports by itself",
    "launch/node_agent.py": "reports for the processes that it starts",
    "launch/node_check.py": "reports what it finds as JSON",
    "launch/pod_check.py": "reports what it finds by its own lines",
    "launch/pod_memory.py": "reports what it finds by its own lines",
    "launch/pod_torchrun.py": "reports for the processes that it starts",
    "launch/slurm_submit.py": "runs on nodes without our packages and has lines of its own",
    "launch/slurm_supervisor.py": "runs on nodes without our packages and has lines of its own",
    "launch/network/check.py": "reports through the log of NCCL",
}


def test_every_program_maps_its_errors() -> None:
    programs = {
        str(path.relative_to(PACKAGE)): text
        for path in PACKAGE.rglob("*.py")
        if 'if __name__ == "__main__":' in (text := path.read_text())
    }
    unmapped = {
        name
        for name, text in programs.items()
        if not re.search(r'one_line_errors\(|__main__":\n(    .*\n)*    (run_stage|start)\(', text)
    }
    assert len(programs) > 10 and unmapped == set(UNMAPPED)


def test_imports_are_not_collected_and_everything_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_once.py").write_text("import gc\nCOLLECTED = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    num_frozen = gc.get_freeze_count()
    with importing():
        imported = import_module("imported_once")
    assert not imported.COLLECTED
    assert gc.isenabled() and gc.get_freeze_count() > num_frozen
    with pytest.raises(ModuleNotFoundError), importing():
        import_module("missing_module")
    assert gc.isenabled()


def test_garbage_is_not_kept_by_what_is_imported_already() -> None:
    num_frozen = gc.get_freeze_count()
    with importing():
        import_module("json")
    assert gc.isenabled() and gc.get_freeze_count() <= num_frozen
