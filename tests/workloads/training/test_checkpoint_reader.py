"""Checkpoint folders run no code: what is planted in one ends every reader with a message."""

from __future__ import annotations

import enum
import io
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import EsmConfig

from seqlm.commands.evaluate import main as evaluate
from seqlm.proteins.inference.embed import embed
from seqlm.proteins.serving.model import open_model
from seqlm.proteins.serving.settings import ServeSettings
from seqlm.training import checkpoint as checkpoint_module
from seqlm.training.checkpoint_reader import ALLOWED, Reader, Record, _Unpickler, weights_of
from seqlm.training.processes import processes
from tests.workloads.proteins.finetune.labelled_proteins import write_task_file
from tests.workloads.proteins.model_folders import (
    Payload,
    plant_in_byte_entry,
    plant_in_metadata,
    plant_in_tensor_entry,
    reseal,
    write_checkpoint,
)
from tests.workloads.training.training_runs import losses, train_here, write_run_file

Plant = Callable[[Path, Payload], None]
PLANTS = (plant_in_metadata, plant_in_byte_entry, plant_in_tensor_entry)
STEP = "checkpoints/step-00000006"


def named(module: str, name: str) -> bytes:
    """A pickle of a global, by its name alone."""
    texts = [b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)]
    return b"\x80\x04" + b"".join(texts) + b"\x93."


@pytest.mark.parametrize(("module", "name"), ALLOWED, ids=".".join)
def test_a_name_of_torchs_metadata_is_read(module: str, name: str) -> None:
    found = _Unpickler(io.BytesIO(named(module, name))).load()
    assert found is ALLOWED[module, name]
    assert found in (Record, torch.Size) or isinstance(found, torch.dtype), (
        "nothing that can do anything"
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "setattr"),
        ("torch", "load"),
        ("torch", "hub"),
        ("torch", "Size.__reduce__"),
        ("torch.serialization", "pickle"),
        ("torch.serialization", "load"),
        ("torch.distributed.checkpoint.metadata", "os"),
        ("torch.distributed.checkpoint.filesystem", "FileSystem"),
        ("torch.distributed.checkpoint.filesystem", "pickle.loads"),
        ("pathlib", "Path"),
    ],
    ids=".".join,
)
def test_any_other_name_is_refused(module: str, name: str) -> None:
    with pytest.raises(pickle.UnpicklingError, match="which no checkpoint contains"):
        _Unpickler(io.BytesIO(named(module, name))).load()


def test_metadata_cannot_change_the_classes_that_it_names() -> None:
    of_class = named("torch.distributed.checkpoint.metadata", "Metadata")[:-1]
    attributes = pickle.dumps((None, {"state": "changed"}))[2:-1]
    with pytest.raises(TypeError):
        _Unpickler(io.BytesIO(of_class + attributes + b"b.")).load()
    assert Record.state is None


@pytest.fixture(scope="module")
def trained(prepared: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run file of a run of 6 steps."""
    run_file = write_run_file(tmp_path_factory.mktemp("trained"), prepared, tiny_model)
    train_here(run_file, "train.max_steps=6")
    return run_file


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A run file and the folder of its run, to be changed."""
    shutil.copytree(trained.parent / "runs", tmp_path / "runs")
    run_file = tmp_path / "run.yaml"
    run_file.write_text(trained.read_text().replace(str(trained.parent), str(tmp_path)))
    return run_file, tmp_path / "runs/run"


def resume(run_file: Path, folder: Path) -> None:
    train_here(run_file, "train.max_steps=9")


def start_from(run_file: Path, folder: Path) -> None:
    train_here(run_file, "name=other", "train.max_steps=6", f"model.init_from={folder}")


def evaluated(run_file: Path, folder: Path) -> None:
    train_here(run_file, f"model.init_from={folder}", stage=evaluate)


def embedded(run_file: Path, folder: Path) -> None:
    fasta = run_file.with_name("one.fasta")
    fasta.write_text(">P1\nMKV\n")

    def stage(config: Any) -> None:
        with processes() as here:
            embed(config, here)

    train_here(run_file, f"inference.input=[{fasta}]", f"inference.model={folder}", stage=stage)


def served(run_file: Path, folder: Path) -> None:
    (folder / "config.json").write_text("{}")  # without it the server does not look any further
    open_model(folder, ServeSettings.of({}))


ENTRY_POINTS = (resume, start_from, evaluated, embedded, served)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("plant", PLANTS)
def test_no_entry_point_runs_what_a_checkpoint_holds(
    plant: Plant,
    entry_point: Callable[[Path, Path], None],
    copied: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    run_file, run_dir = copied
    plant(run_dir / STEP, Payload(tmp_path / "ran"))
    with pytest.raises(ValueError, match=str(run_dir / STEP)) as raised:
        entry_point(run_file, run_dir / STEP)
    assert not (tmp_path / "ran").exists()
    assert "; " in str(raised.value) and "\n" not in str(raised.value), "one line, with what to do"
    assert (run_dir / STEP).exists(), "its checksums are right, so it does not count as damaged"


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTS)
def test_a_task_scores_no_planted_checkpoint(
    plant: Plant, tiny_model: Path, tmp_path: Path
) -> None:
    run_file = write_task_file(tmp_path, tiny_model, "binary")
    train_here(run_file, "train.max_steps=3", "train.save_every_steps=3")
    folder = tmp_path / "runs/run/checkpoints/step-00000003"
    plant(folder, Payload(tmp_path / "ran"))
    with pytest.raises(ValueError, match=str(folder)):
        train_here(run_file, f"inference.model={folder}", stage=evaluate)
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("plant", [plant_in_metadata, plant_in_byte_entry])
def test_torch_alone_would_run_it(plant: Plant, tiny_config: EsmConfig, tmp_path: Path) -> None:
    """Otherwise the tests above could not fail."""
    folder = write_checkpoint(tmp_path, tiny_config)
    shapes = {name: tensor.shape for name, tensor in weights_of(folder).items()}
    plant(folder, Payload(tmp_path / "ran"))
    state = {"model": {name: torch.empty(shape) for name, shape in shapes.items()}}
    load(state, checkpoint_id=folder, no_dist=True)
    assert (tmp_path / "ran").exists()


def test_checkpoints_of_debians_python_are_read(
    tiny_config: EsmConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11.2 pickles a member of an Enum as a call of getattr, which is not made here."""
    expected = weights_of(write_checkpoint(tmp_path / "now", tiny_config))

    def by_name(member: enum.Enum, protocol: int) -> tuple[Any, ...]:
        return getattr, (type(member), member.name)

    monkeypatch.setattr(metadata._MEM_FORMAT_ENCODING, "__reduce_ex__", by_name)
    folder = write_checkpoint(tmp_path / "then", tiny_config)
    assert b"getattr" in (folder / ".metadata").read_bytes()
    found = weights_of(folder)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_reason_of_two_lines_is_reported_in_one(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"\x80\x02Pelsewhere\n.")  # a persistent id
    with pytest.raises(
        ValueError, match=r"[.]metadata cannot be read: UnpicklingError: "
    ) as raised:
        Reader(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["../outside.distcp", "/etc/passwd", "unlisted.distcp"])
def test_tensors_come_from_the_folders_own_files(
    path: str, tiny_config: EsmConfig, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path, tiny_config)
    data = (folder / ".metadata").read_bytes()
    old, new = (b"\x8c" + bytes([len(text)]) + text.encode() for text in ("__0_0.distcp", path))
    assert data.count(old) == 1
    # Without frames, whose lengths would have to change.
    (folder / ".metadata").write_bytes(pickle.dumps(None)[:2] + unframed(data).replace(old, new))
    reseal(folder)
    with pytest.raises(ValueError, match="which has no checksum"):
        weights_of(folder)


def unframed(data: bytes) -> bytes:
    """Opcodes of a pickle without its protocol and frames."""
    result = b""
    rest = data[2:]
    while rest:
        assert rest[:1] == b"\x95"
        length = int.from_bytes(rest[1:9], "little")
        result = result + rest[9 : 9 + length]
        rest = rest[9 + length :]
    return result


def test_new_checkpoints_hold_tensors_alone(trained: Path) -> None:
    folder = trained.parent / "runs/run" / STEP
    items = FileSystemReader(folder).read_metadata().state_dict_metadata.values()
    assert {type(item) for item in items} == {TensorStorageMetadata}
    assert json.loads((folder / "checkpoint.json").read_text())["identity"]["train.seed"] == 0


@pytest.mark.long
def test_a_checkpoint_of_an_earlier_version_is_resumed(
    copied: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has entries that are not tensors, and no checksum of checkpoint.json."""
    run_file, _ = copied
    train_here(run_file, "name=whole", "train.max_steps=9", "optim.schedule=constant")
    save = checkpoint_module.async_save

    def with_settings(state: dict[str, Any], **keywords: Any) -> Any:
        state["optimizer"] |= {"param_groups": [{"lr": 5.0, "betas": (0.1, 0.2), "params": ["x"]}]}
        return save(state, **keywords)

    with monkeypatch.context() as earlier:
        earlier.setattr(checkpoint_module, "async_save", with_settings)
        earlier.setattr(checkpoint_module, "seal", json.dumps)
        train_here(run_file, "name=old", "train.max_steps=6", "optim.schedule=constant")
    folder = run_file.parent / "runs/old" / STEP
    assert "sha256" not in json.loads((folder / "checkpoint.json").read_text())
    train_here(run_file, "name=old", "train.max_steps=9", "optim.schedule=constant")
    assert losses(run_file.parent / "runs/old") == losses(run_file.parent / "runs/whole")
