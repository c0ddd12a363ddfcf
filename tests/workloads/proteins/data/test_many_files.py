"""Preparation of many small files: temporary disk, progress bars, and the same result as of one file."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from seqlm.proteins.data import prepare as preparation
from seqlm.proteins.data import scatter
from seqlm.proteins.data.collected_rejects import Found, Rejects
from seqlm.proteins.data.disk import needed_disk
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import Reject
from seqlm.training.data.limits import Limits
from seqlm.training.data.manifest import Manifest

NUM_FILES = 600
PER_FILE = 10
RESIDUES = 60


def records_of_file(number: int) -> str:
    """Return the text of a file of proteins."""
    draws = np.random.default_rng(number).choice(
        list("LAGVSERTIDPKQNFYMHWC"), size=(PER_FILE, RESIDUES)
    )
    return "".join(f">P{number}_{row}\n{''.join(draw)}\n" for row, draw in enumerate(draws))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("many")
    for number in range(NUM_FILES):
        (folder / f"{number:04d}.fasta").write_text(records_of_file(number))
    return sorted(folder.iterdir())


def prepared(paths: list[Path], out: Path, *, progress: bool = False) -> Manifest:
    execution = Execution(workers=1, progress=progress)
    return prepare(
        ProteinFiles(paths),
        out,
        seed=0,
        validation_fraction=0.1,
        test_fraction=0.1,
        execution=execution,
    )


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_many_small_files_take_at_most_three_times_their_text(
    many: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    largest: list[int] = []
    remove = shutil.rmtree

    def removing(path: Path, **named: bool) -> None:
        if path.name == "spill":
            largest.append(size_of(path.parent))
        remove(path, **named)

    monkeypatch.setattr(preparation.shutil, "rmtree", removing)
    calls: list[int] = []
    scattered = scatter._scatter_blocks

    def counting(plan, tasks):  # type: ignore[no-untyped-def]
        calls.append(len(tasks))
        return scattered(plan, tasks)

    monkeypatch.setattr(scatter, "_scatter_blocks", counting)
    manifest = prepared(many, tmp_path / "out", progress=True)
    text_bytes = sum(path.stat().st_size for path in many)
    [spilled_bytes] = largest
    assert spilled_bytes < 3 * text_bytes
    needed = needed_disk(ProteinFiles(many), text_bytes, Limits.for_workers(1))
    assert spilled_bytes <= needed <= 1.2 * spilled_bytes
    assert sum(calls) == NUM_FILES and len(calls) == 1
    shown = capsys.readouterr().err
    bars = {line.partition(":")[0] for line in re.split(r"[\r\n]+", shown) if "reading" in line}
    assert bars == {"reading 600 files"}
    assert len(manifest.sources) == NUM_FILES


def test_many_files_give_the_shards_of_one(
    many: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole.fasta"
    whole.write_text("".join(path.read_text() for path in many))
    expected = prepared([whole], tmp_path / "one")
    monkeypatch.setattr(scatter, "JOINED_BYTES", 5_000)
    found = prepared(many, tmp_path / "many")
    assert found.splits == expected.splits
    for name in ("train", "validation", "test"):
        [file] = [shard.file for shard in found.splits[name].shards]
        assert (tmp_path / "many" / file).read_bytes() == (tmp_path / "one" / file).read_bytes()


def test_a_bad_record_of_a_small_file_is_named_with_its_line(
    many: list[Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.fasta"
    bad.write_text(">a\nMAGV\n>b\nMA7V\n")
    prepared([*many[:3], bad, *many[3:6]], tmp_path / "out")
    rejects = (tmp_path / "out" / "rejects.csv").read_text()
    assert rejects.count("\n") == 2 and f"{bad}:4," in rejects


def test_examples_and_counts_are_added_in_the_order_of_the_input() -> None:
    def of(*lines: int) -> Rejects:
        rejects = Rejects()
        for line in lines:
            rejects.count(Reject(Kind.EMPTY, f"x:{line}", "empty"))
        return rejects

    found = Found()
    for file, lines in (("a", (1, 2)), ("b", ()), ("a", (3, 4))):
        part = Found()
        part.add_file(file, 10, of(*lines))
        found.add(part)
    assert found.records == {"a": 20, "b": 10}
    assert found.all_rejects.total == 4
    shown = [bad.where for bad in found.all_rejects.examples[Kind.EMPTY]]
    assert shown == ["x:1", "x:2", "x:3"]
