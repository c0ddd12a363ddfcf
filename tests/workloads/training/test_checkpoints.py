"""Checkpoints under failing disks: a save that fails leaves the earlier checkpoints, on every process."""

from __future__ import annotations

import ast
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from seqlm.proteins.finetune import objective
from seqlm.proteins.finetune.objective import FineTuning
from seqlm.runs.run_file import RunFile
from seqlm.training import checksums
from seqlm.training.checkpoint import Checkpointer, CheckpointError
from seqlm.training.checksums import digest_of, new_folder, read_document
from seqlm.training.config import TrainConfig
from seqlm.training.data.locks import try_lock
from seqlm.training.data.workspace import workspace
from seqlm.training.objective import Place
from seqlm.training.packing import PackShape
from seqlm.training.precision import select_precision
from seqlm.training.processes import exclusive, processes
from seqlm.training.tracking.run_log import METRICS_FILE, RunLog
from seqlm.training.whole_file import writing_whole
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.training_runs import lines, train_here

REPOSITORY = Path(__file__).parents[3]
PROGRESS: dict[str, Any] = {"progress": {"step": 1}}


@contextmanager
def saving(folder: Path, keep: int = 2) -> Iterator[Any]:
    """Yield a function that saves a tiny model as a step's checkpoint, and waits for it."""
    model = nn.Linear(2, 2)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(model.parameters())]
    with processes() as here, Checkpointer(folder, here, {}, keep=keep) as checkpointer:

        def save(step: int) -> None:
            checkpointer.save(step, model, optimizers, PROGRESS)
            checkpointer.finish()

        yield save


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
def test_a_checkpoint_that_cannot_be_read_back_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(path: Path, algorithm: str) -> str:
        raise OSError(number, os.strerror(number), str(path))

    with saving(tmp_path) as save:
        save(1)
        save(2)
        for step in (3, 4):
            with monkeypatch.context() as patched:
                patched.setattr(checksums, "digest_of", fails)
                with pytest.raises(
                    CheckpointError, match=r"Earlier checkpoints are intact"
                ) as raised:
                    save(step)
            assert os.strerror(number) in str(raised.value)
            assert names(tmp_path) == ["step-00000001", "step-00000002"]
        save(5)
    assert names(tmp_path) == ["step-00000002", "step-00000005"]
    for checkpoint in tmp_path.iterdir():
        sums = read_document(checkpoint)["checksums"]
        assert sums == {name: int(digest_of(checkpoint / name, "crc32"), 16) for name in sums}


def test_a_text_is_no_checksum(tmp_path: Path) -> None:
    """Earlier versions wrote one after a read error."""
    with saving(tmp_path) as save:
        save(1)
    document = read_document(tmp_path / "step-00000001")
    document["checksums"][".metadata"] = "[Errno 5] Input/output error"
    (tmp_path / "step-00000001/checkpoint.json").write_text(checksums.seal(document))
    with pytest.raises(
        checksums.DamagedError, match=r"expected a number as the checksum of '\.meta"
    ):
        read_document(tmp_path / "step-00000001")


def test_a_model_folder_that_cannot_be_read_back_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("the earlier one")

    def fails(path: Path, algorithm: str) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(checksums, "digest_of", fails)
    with pytest.raises(OSError, match="Input/output"), new_folder(tmp_path / "model") as partial:
        partial.mkdir()
        (partial / "config.json").write_text("{}")
    assert (tmp_path / "model/config.json").read_text() == "the earlier one"


def test_an_unreadable_file_of_a_model_is_damage(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, algorithm: str) -> str:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(checksums, "digest_of", fails)
    with (
        pytest.raises(checksums.DamagedError, match=r"it cannot be read \(Stale file handle\)"),
        checksums.verified(tiny_model),
    ):
        pass


def test_leftovers_of_every_kind_are_deleted(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("x")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "step-00000001.partial").mkdir()
    (folder / "step-00000002.partial").write_text("a file")
    (folder / "step-00000003.partial").symlink_to(victim)
    with saving(folder) as save:
        save(4)
    assert names(folder) == ["step-00000004"] and victim.exists()


def test_everything_is_on_the_disk_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure may leave the new name with old or no content."""
    done: list[str] = []
    fsync = os.fsync
    replace = os.replace

    def recorded(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def replaced(old: Any, new: Any) -> None:
        done.append(f"-> {new}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(os, "replace", replaced)
    with saving(tmp_path / "checkpoints") as save:
        save(1)
    checkpoint = tmp_path / "checkpoints/step-00000001"
    moved = done.index(f"-> {checkpoint}")
    partial = f"{checkpoint}.partial"
    for name in ("", "/.metadata", "/__0_0.distcp", "/checkpoint.json"):
        assert partial + name in done[:moved]
    assert str(checkpoint.parent) in done[moved:]
    with new_folder(tmp_path / "model") as folder:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    moved = done.index(f"-> {tmp_path / 'model'}")
    assert f"{tmp_path}/model.partial/config.json" in done[:moved]
    assert str(tmp_path) in done[moved:]
    with writing_whole(tmp_path / "table.csv") as file:
        file.write_text("id\n")
    assert str(file) in done[: done.index(f"-> {tmp_path / 'table.csv'}")]
    with workspace(tmp_path / "data") as folder:
        (folder / "train").mkdir()
        (folder / "train/shard").write_text("MKV")
    moved = done.index(f"-> {tmp_path / 'data'}")
    assert {str(folder), f"{folder}/train", f"{folder}/train/shard"} <= set(done[:moved])
    assert done[-1] == str(tmp_path)


def test_one_function_renames_into_place() -> None:
    """It writes everything to the disk first. Renames to get something out of the way need not wait."""
    aside = {"training/checkpoint.py": 2}
    # No disk outlives what is in memory.
    in_memory = {"training/memory/pieces.py": 2, "training/step/shared_plans.py": 1}
    found: dict[str, int] = {}
    for file in (REPOSITORY / "workloads/seqlm").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and _renames(call):
                name = str(file.relative_to(REPOSITORY / "workloads/seqlm"))
                found[name] = found.get(name, 0) + 1
    assert found == aside | in_memory | {"training/whole_file.py": 1}


def _renames(call: ast.Call) -> bool:
    """Return whether a call is of ``Path.rename``, ``Path.replace``, or of the same functions of ``os``."""
    function = ast.unparse(call.func)
    if function in ("os.rename", "os.replace", "os.renames", "shutil.move"):
        return True
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr in ("rename", "replace")
    if not is_method or len(call.args) != 1 or call.keywords:
        return False
    return not isinstance(call.args[0], ast.Constant)


def test_a_command_that_fails_hinders_no_later_one_of_the_same_python() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong input"), processes() as here:
            assert here.world_size == 1
            raise ValueError("wrong input")


@pytest.mark.parametrize("what", ["system", "input", "lock", "precision", "baselines"])
def test_what_the_first_process_finds_ends_all_of_them(tmp_path: Path, what: str) -> None:
    """Otherwise the others would wait, or end with an error of their connection."""
    held = try_lock(tmp_path / "metrics.jsonl")
    assert held is not None
    with forked(2, fail_on_the_first, tmp_path, what, log=tmp_path / "log") as started:
        assert started.ends(60) == [0, 0], started.output
    held.close()
    message = {
        "system": f"[Errno 28] No space left on device: '{tmp_path}/x'",
        "input": "a damaged line",
        "lock": "held by another",
        "precision": f"[Errno 17] File exists: '{tmp_path}/x'",
        "baselines": "no baseline",
    }[what]
    # Lines of two processes may be on one.
    assert started.output.count(message) == 2, started.output


def fail_on_the_first(folder: Path, what: str) -> None:
    def fails() -> None:
        if what == "system":
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "x"))
        raise ValueError("a damaged line")

    with processes() as here:
        try:
            if what == "lock":
                with exclusive(folder / "metrics.jsonl", here, "held by another"):
                    pass
            elif what == "precision":
                (folder / "x").touch()
                select_precision(TrainConfig(), torch.device("cpu"), here, folder / "x")
            elif what == "baselines":
                place = Place(here, PackShape(8, 8, 1), torch.float32)
                FineTuning.score_written(_task_without_baselines(), folder, place)
            else:
                here.first_does(fails)
        except (OSError, ValueError) as error:
            print(error, flush=True)


def _task_without_baselines() -> Any:
    """Return a task whose baselines cannot be written."""

    def refuse(*_: object) -> None:
        raise OSError("no baseline")

    objective.write_baselines = refuse  # in a forked process
    return SimpleNamespace(
        task=SimpleNamespace(baselines=True), is_of_variants=False, config=RunFile(name="run")
    )


@pytest.mark.long
def test_a_record_that_cannot_be_written_ends_every_process(run_file: Path) -> None:
    with forked(2, train_with_a_full_disk, str(run_file), log=run_file.with_name("log")) as started:
        assert started.ends(90) == [0, 0], started.output
    told = [line for line in started.output.splitlines() if line.startswith("ended: ")]
    run_dir = run_file.parent / "runs/run"
    message = f"ended: [Errno 28] No space left on device: '{run_dir / METRICS_FILE}'"
    assert told == [message] * 2, started.output
    assert [line["step"] for line in lines(run_dir, "train")] == [1, 2]


def train_with_a_full_disk(run_file: str) -> None:
    train_line = RunLog.train

    def limited(log: RunLog, step: int, **values: Any) -> None:
        if step == 3 and log._enabled:
            log._stream = FullDisk()  # type: ignore[assignment]
        train_line(log, step, **values)

    RunLog.train = limited  # type: ignore[method-assign]
    try:
        train_here(Path(run_file), "train.max_steps=8")
    except OSError as error:
        print(f"ended: {error}", flush=True)
    finally:
        RunLog.train = train_line  # type: ignore[method-assign]


class FullDisk:
    def write(self, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self) -> None:
        pass


@pytest.mark.long
def test_a_kill_at_the_end_writes_no_evaluation_twice(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluations of the end come after the last checkpoint, and are made again."""
    settings = ("train.max_steps=6", "train.save_every_steps=3", "train.eval_every_steps=3")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("seqlm.training.train.write_results", killed)
        train_here(run_file, *settings)
    run_dir = run_file.parent / "runs/run"
    before = lines(run_dir, "eval")
    assert [(line["step"], line["split"]) for line in before] == [
        (3, "validation"),
        (6, "validation"),
        (6, "test"),
    ]
    train_here(run_file, *settings)
    assert lines(run_dir, "eval") == before
    train_here(run_file, *settings, "train.max_steps=9", "optim.schedule=constant")
    assert lines(run_dir, "eval")[:3] == before, "a longer run keeps the scores of its start"
