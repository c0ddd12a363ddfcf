"""Mutated checkpoint and model folders: each is read as it was, or ends in one line that names it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from seqlm.proteins.model.pretrained import load_model
from tests.workloads.proteins.model_folders import METADATA, reseal, write_checkpoint
from tests.workloads.proteins.tiny_models import save_tiny_model, tiny_config

ROUNDS = 60
TEXTS = (b"", b"[]", b"{}", b"null", b"[" * 5000, b"\xff\xfe", b"\x80\x04N.", b"0" * 64 + b"  ../x")
LONG_BINPUT = b"r"
"""Opcode that makes an unpickler claim as much memory as its argument says."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("originals")
    config = tiny_config(layers=1, width=16)
    save_tiny_model(folder / "model", config)
    foreign = Path(shutil.copytree(folder / "model", folder / "foreign"))
    (foreign / "SHA256SUMS").unlink()
    checkpoint = write_checkpoint(folder / "checkpoints", config)
    return {
        "model": folder / "model",
        "foreign": foreign,
        "checkpoint": checkpoint,
        "sealed": checkpoint,
    }


def mutate(content: bytes, draw: random.Random) -> bytes:
    match draw.randrange(8):
        case 0:
            return draw.choice(TEXTS)
        case 1:
            return content[: draw.randrange(len(content))]
        case 2:
            first, last = sorted(draw.choices(range(len(content)), k=2))
            return content[:first] + content[last:]
        case 3:
            place = draw.randrange(len(content))
            return content[:place] + draw.randbytes(draw.randrange(1, 9)) + content[place:]
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 10))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def plant(file: Path, draw: random.Random) -> None:
    """Put what must not be read in the place of a file, as archives and repositories can."""
    # A checkpoint's shards may have any size, and nothing but their checksum tells it.
    match draw.randrange(3 if file.suffix in (".distcp", "") else 4):
        case 0:
            file.unlink()
            file.symlink_to(draw.choice(("/dev/zero", "/dev/tty", "/proc/self/mem", "/etc/passwd")))
        case 1:
            file.unlink()
            os.mkfifo(file)
        case 2:
            outside = file.parent.parent / "outside"
            file.rename(outside)
            file.symlink_to(draw.choice((outside, Path("../outside"))))
        case 3:
            with file.open("r+b") as stream:
                stream.truncate(1 << 40)


def inflate(config: Path, draw: random.Random) -> None:
    """Give a configuration a size that no model has."""
    document = json.loads(config.read_text())
    sizes = [name for name, value in document.items() if type(value) is int and value > 1]
    document[draw.choice([*sizes, "num_labels"])] = 10 ** draw.randrange(8, 19)
    config.write_text(json.dumps(document))


def reorder(vocabulary: Path, draw: random.Random) -> None:
    """Swap two tokens, which another alphabet has in another order."""
    tokens = vocabulary.read_text().split()
    first, second = draw.sample(range(len(tokens)), k=2)
    tokens[first], tokens[second] = tokens[second], tokens[first]
    vocabulary.write_text("\n".join(tokens))


def spoil(kind: str, folder: Path, draw: random.Random) -> str:
    """Change one file; its name."""
    files = sorted(path for path in folder.iterdir())
    if kind == "foreign" and draw.random() < 0.2:
        inflate(folder / "config.json", draw)
        return "config.json"
    if kind == "foreign" and draw.random() < 0.1:
        reorder(folder / "vocab.txt", draw)
        return "vocab.txt"
    if kind != "sealed" and draw.random() < 0.2:
        file = draw.choice(files)
        plant(file, draw)
        return file.name
    if kind == "foreign":
        # Another number in config.json is another model, of any size, and nothing says that it is wrong.
        files = [folder / "model.safetensors"]
    weights = max(files, key=lambda path: path.stat().st_size)
    file = folder / METADATA if kind == "sealed" else draw.choice([weights, draw.choice(files)])
    if kind != "sealed" and draw.random() < 0.2:
        file.unlink()
        if draw.random() < 0.5:
            file.mkdir()
        return file.name
    content = file.read_bytes()
    changed = mutate(content, draw)
    if kind == "sealed":
        changed = b"" if changed.count(LONG_BINPUT) > content.count(LONG_BINPUT) else changed
    file.write_bytes(changed)
    if kind == "sealed":
        reseal(folder)
    return file.name


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_mutated_folders_are_refused_in_one_line(
    originals: dict[str, Path], rounds: Callable[[int], Iterator[random.Random]], tmp_path: Path
) -> None:
    states = {kind: load_model(str(folder)).state_dict() for kind, folder in originals.items()}
    refused = number = 0
    for draw in rounds(ROUNDS):
        number += 1
        kind = draw.choice(list(originals))
        folder = Path(shutil.copytree(originals[kind], tmp_path / "folder"))
        file = spoil(kind, folder, draw)
        try:
            found = load_model(str(folder)).state_dict()
        except ValueError as error:
            assert "\n" not in str(error) and str(folder) in str(error), f"{kind} {file}: {error}"
            refused += 1
        except Exception as error:
            pytest.fail(f"{kind} {file}: {type(error).__name__}: {error}")
        else:
            same = all(torch.equal(found[name], value) for name, value in states[kind].items())
            # Without checksums a changed number stays unseen, and a sealed change is not damage.
            assert same or kind in ("foreign", "sealed"), f"{kind} {file} was read as another model"
            assert file != "vocab.txt", f"{kind}: another alphabet was read as ESM-2's"
        shutil.rmtree(folder)
        (tmp_path / "outside").unlink(missing_ok=True)
    assert number == 1 or refused > number / 3, "the mutations are of no use"
