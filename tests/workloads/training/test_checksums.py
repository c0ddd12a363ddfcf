"""Damaged checkpoints and model folders end every reader with one line that names the file."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from transformers import AutoTokenizer, EsmConfig, EsmForMaskedLM

from seqlm.commands.evaluate import main as evaluate
from seqlm.proteins.model.pretrained import load_model, starting_config
from seqlm.proteins.serving.model import open_model
from seqlm.proteins.serving.settings import ServeSettings
from seqlm.runs.run_file import ModelConfig
from seqlm.training import checksums
from seqlm.training.checksums import DamagedError, verified
from seqlm.training.processes import Processes
from tests.workloads.proteins.model_folders import write_checkpoint
from tests.workloads.training.training_runs import train_here

WEIGHTS = "model.safetensors"


def flip(file: Path, place: float = 0.3) -> None:
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 1
    file.write_bytes(content)


def cut(file: Path, kept: float = 0.5) -> None:
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * kept)])


def one_line(error: Exception) -> str:
    text = str(error)
    assert "\n" not in text and ("again" in text or "another" in text), text
    return text


@pytest.fixture
def checkpoint(tiny_config: EsmConfig, tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "checkpoints", tiny_config)


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """With checksums: a model folder of this project."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture
def foreign(model: Path) -> Path:
    (model / "SHA256SUMS").unlink()
    return model


SHARD = "__0_0.distcp"
DOCUMENT = "checkpoint.json"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (SHARD, flip),
        (SHARD, cut),
        (SHARD, lambda file: cut(file, 0.9)),
        (SHARD, Path.unlink),
        (".metadata", flip),
        (".metadata", lambda file: file.write_bytes(b"garbage")),
        (".metadata", Path.unlink),
        (DOCUMENT, lambda file: file.write_text("[]")),
        (DOCUMENT, lambda file: file.write_text("{}")),
        (DOCUMENT, lambda file: file.write_text("[" * 100_000)),
        (DOCUMENT, lambda file: file.write_bytes(b"\xff\xfe")),
        (DOCUMENT, cut),
        (DOCUMENT, lambda file: file.write_text(file.read_text().replace("1e-05", "1e-01"))),
    ],
)
def test_a_damaged_checkpoint_ends_in_one_line(
    file: str, damage: Callable[[Path], Any], checkpoint: Path
) -> None:
    damage(checkpoint / file)
    with pytest.raises(DamagedError) as raised:
        load_model(str(checkpoint))
    assert str(checkpoint / file) in one_line(raised.value)
    (checkpoint / "config.json").write_text("{}")
    with pytest.raises(DamagedError, match=file):
        open_model(checkpoint, ServeSettings.of({}))
    if file == DOCUMENT:
        with pytest.raises(DamagedError, match=file):
            starting_config(ModelConfig(init_from=str(checkpoint)))


@pytest.mark.parametrize("name", [SHARD, WEIGHTS])
def test_no_stage_reads_damaged_weights(
    name: str, run_file: Path, checkpoint: Path, model: Path
) -> None:
    folder = checkpoint if name == SHARD else model
    flip(folder / name)
    start = f"model.init_from={folder}"
    for stage in ([], [evaluate]):
        settings = {"stage": stage[0]} if stage else {}
        with pytest.raises(
            DamagedError, match=rf"{folder / name} is damaged: its checksum is wrong"
        ):
            train_here(run_file, start, "train.max_steps=6", **settings)
    assert not (run_file.parent / "runs/run/model").exists()


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (WEIGHTS, flip),
        (WEIGHTS, cut),
        (WEIGHTS, Path.unlink),
        ("config.json", lambda file: file.write_text("[]")),
        ("config.json", lambda file: file.write_text(file.read_text().replace("1e-05", "1e-01"))),
        ("vocab.txt", flip),
    ],
)
def test_a_damaged_model_folder_of_ours_ends_in_one_line(
    file: str, damage: Callable[[Path], Any], model: Path
) -> None:
    damage(model / file)
    for reader in (load_model, lambda name: open_model(Path(name), ServeSettings.of({}))):
        with pytest.raises(ValueError, match=file) as raised:
            reader(str(model))
        one_line(raised.value)


def settings(**changes: Any) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(
    ("file", "damage"),
    [
        (WEIGHTS, cut),
        (WEIGHTS, lambda file: file.write_bytes(file.read_bytes()[:-1])),
        (WEIGHTS, lambda file: file.write_bytes(b"")),
        (WEIGHTS, lambda file: file.write_bytes(b"\xff" * 100)),
        (WEIGHTS, lambda file: file.write_bytes(b"\x80\x04N.")),
        (WEIGHTS, Path.unlink),
        ("config.json", lambda file: file.write_text("[]")),
        ("config.json", lambda file: file.write_text("{}")),
        ("config.json", cut),
        ("config.json", lambda file: file.write_bytes(b"\xff\xfe\x00")),
        ("config.json", settings(hidden_size=-1)),
        ("config.json", settings(hidden_size=0)),
        ("config.json", settings(num_attention_heads=0)),
        ("config.json", settings(num_hidden_layers="six")),
        ("config.json", settings(vocab_size=7)),
    ],
)
def test_a_damaged_model_folder_of_others_ends_in_one_line(
    file: str, damage: Callable[[Path], Any], foreign: Path
) -> None:
    damage(foreign / file)
    with pytest.raises(ValueError, match=str(foreign)) as raised:
        open_model(foreign, ServeSettings.of({}))
    text = one_line(raised.value)
    assert file != WEIGHTS or not (foreign / file).exists() or str(foreign / file) in text


def test_a_folder_of_ours_is_read_by_others_and_by_sha256sum(model: Path) -> None:
    EsmForMaskedLM.from_pretrained(model)
    AutoTokenizer.from_pretrained(model)
    done = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=model, capture_output=True, text=True
    )
    assert done.returncode == 0 and f"{WEIGHTS}: OK" in done.stdout
    listed = {line.split("  ")[1] for line in (model / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in model.iterdir()} - {"SHA256SUMS"}


@pytest.mark.parametrize(
    "text", ["", "0" * 64 + "  vocab.txt", "garbage", "0" * 64 + "  ../model.safetensors", "\udcff"]
)
def test_damaged_checksums_are_not_taken_for_none(text: str, model: Path) -> None:
    (model / "SHA256SUMS").write_text(text, errors="surrogateescape")
    with pytest.raises(
        DamagedError, match="SHA256SUMS is damaged: expected a checksum for each file"
    ):
        load_model(str(model))


def test_the_hash_of_a_folder_is_that_of_its_files(model: Path) -> None:
    with verified(model) as ours:
        pass
    sums = (model / "SHA256SUMS").read_bytes()
    assert ours.sha256 == hashlib.sha256(sums).hexdigest()
    (model / "SHA256SUMS").unlink()
    (model / "pytorch_model.bin").write_bytes(b"not read where there are safetensors")
    with verified(model) as foreign:
        pass
    assert foreign.sha256 == ours.sha256
    flip(model / WEIGHTS)
    with verified(model) as other:
        pass
    assert other.sha256 not in (None, ours.sha256)


def test_evaluation_and_training_record_what_they_read(run_file: Path, model: Path) -> None:
    sums = hashlib.sha256((model / "SHA256SUMS").read_bytes()).hexdigest()
    train_here(run_file, "train.max_steps=6", f"model.init_from={model}")
    run_dir = run_file.parent / "runs/run"
    assert json.loads((run_dir / "all_results.json").read_text())["init_from_sha256"] == sums
    train_here(run_file, f"model.init_from={model}", stage=evaluate)
    (scores,) = run_dir.glob("evaluation-*.json")
    assert json.loads(scores.read_text())["model_sha256"] == sums


def test_a_model_of_the_hub_is_hashed_once_it_is_here(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[Path] = []

    def cached(name: str, file: str) -> str | None:
        assert name == "owner/name"
        return str(arrived[0] / file) if arrived else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    (model / "SHA256SUMS").unlink()
    with verified(model) as there:
        pass
    with verified("owner/name") as source:
        arrived.append(model)
    assert source.sha256 == there.sha256 is not None


def test_large_folders_are_announced(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums, "_REPORTED_BYTES", 1)
    load_model(str(model))
    assert f"files of {model}, 0.0 GB" in capsys.readouterr().err


class Together:
    """Processes that are threads."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size)
        self.parts = [{} for _ in range(world_size)]

    def place(self, rank: int) -> Processes:
        def gather(mine: dict[Any, Any]) -> dict[Any, Any]:
            self.parts[rank] = mine
            self.barrier.wait(240)
            union = {key: value for part in self.parts for key, value in part.items()}
            self.barrier.wait(240)
            return union

        here: Any = type(
            "Place", (), {"rank": rank, "world_size": len(self.parts), "is_first": rank == 0}
        )()
        here.gather = gather
        place: Processes = here
        return place


def test_processes_share_the_files_and_agree(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: Counter[str] = Counter()
    digest_of = checksums.digest_of

    def counted(path: Path, algorithm: str) -> str:
        hashed[path.name] += 1
        return digest_of(path, algorithm)

    monkeypatch.setattr(checksums, "digest_of", counted)
    together = Together(3)

    def read(rank: int) -> str | None:
        with verified(model, together.place(rank)) as source:
            pass
        return source.sha256

    with ThreadPoolExecutor(3) as ranks:
        assert len(set(ranks.map(read, range(3)))) == 1
        assert set(hashed.values()) == {1} and len(hashed) == len(list(model.iterdir())) - 1
        flip(model / WEIGHTS)
        for rank in [ranks.submit(read, rank) for rank in range(3)]:
            with pytest.raises(DamagedError, match=WEIGHTS):
                rank.result()


@pytest.mark.parametrize("has_isal", [True, False])
@pytest.mark.parametrize("size", [0, 1, checksums._CHUNK_BYTES, 2 * checksums._CHUNK_BYTES + 7])
def test_a_crc32_is_that_of_zlib(
    size: int, has_isal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints of machines with isal and without it have the same checksums."""
    if not has_isal:
        monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    # The module chooses when it is imported, so the test imports a copy of it.
    spec = importlib.util.spec_from_file_location("seqlm.training.copy", checksums.__file__)
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, copy)
    spec.loader.exec_module(copy)
    assert (copy._crc32_of is zlib.crc32) is not has_isal
    content = bytes(range(251)) * (size // 251 + 1)
    path = tmp_path / "file"
    path.write_bytes(content[:size])
    assert copy.crc32(path) == zlib.crc32(content[:size])
