"""Growth of the preparation of data: proteins, files, and runs on disk."""

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.growth.processes import run_apart
from benchmarks.growth.row import CPU_SECONDS, FILES, PROTEINS, Costs, Row
from seqlm.proteins.data.disk import needed_disk
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
from seqlm.training.data.limits import Limits, default_workers
from seqlm.training.data.merged_runs import groups_to_merge
from seqlm.training.data.spill import GRID_CELLS, Run

RESIDUES = 60
"""Residues of a synthetic protein."""
LETTERS = np.frombuffer(b"LAGVSERTIDPKQNFYMHWC", np.uint8)
PROTEINS_PER_FILE = 10
TEXT_PER_PROTEIN = 350
"""Bytes of text of a protein of UniRef50 in a run."""


def write_fasta(path: Path, num_proteins: int, *, first: int = 0) -> None:
    """Write random proteins, which differ by their number.

    Args:
        path: file.
        num_proteins: number of proteins.
        first: number of the first protein.
    """
    rng = np.random.default_rng(first)
    with path.open("wb") as stream:
        for start in range(0, num_proteins, 10_000):
            count = min(10_000, num_proteins - start)
            rows = LETTERS[rng.integers(0, len(LETTERS), (count, RESIDUES))]
            names = range(first + start, first + start + count)
            stream.writelines(
                b">P%d\n%b\n" % (name, row.tobytes()) for name, row in zip(names, rows, strict=True)
            )


def prepare_files(sources: list[str], out: str) -> int:
    """Prepare files in this process, whose processor time is measured, and return the number of records."""
    manifest = prepare(
        ProteinFiles([Path(source) for source in sources]),
        Path(out),
        seed=0,
        validation_fraction=0.05,
        test_fraction=0.05,
        execution=Execution(workers=1, progress=False),
    )
    return manifest.records


def _one_file(num_proteins: int, folder: Path) -> Costs:
    fasta = folder / f"{num_proteins}.fasta"
    write_fasta(fasta, num_proteins)
    out = folder / f"prepared-{num_proteins}"
    done = run_apart(prepare_files, [str(fasta)], str(out))
    assert done.result <= num_proteins
    shutil.rmtree(out)
    fasta.unlink()
    return {CPU_SECONDS: done.cpu_seconds, "MiB": done.peak_mib}


def _many_files(num_files: int, folder: Path) -> Costs:
    """Prepare small files, and measure the temporary disk before it is freed."""
    sources: list[Path] = []
    for number in range(num_files):
        path = folder / f"{num_files}-{number:06d}.fasta"
        write_fasta(path, PROTEINS_PER_FILE, first=number * PROTEINS_PER_FILE)
        sources.append(path)
    text_bytes = sum(path.stat().st_size for path in sources)
    temporary: list[int] = []
    remove = shutil.rmtree

    def removing(path: Path, **options: Any) -> None:
        if path.name == "spill":
            temporary.append(_size_of(path.parent))
        remove(path, **options)

    with mock.patch.object(shutil, "rmtree", removing):
        prepare_files([str(path) for path in sources], str(folder / f"of-{num_files}"))
    announced = needed_disk(ProteinFiles(sources), text_bytes, Limits.for_workers(1))
    return {
        "bytes of temporary disk": max(temporary),
        "times the text": max(temporary) / text_bytes,
        "times the announcement": max(temporary) / announced,
    }


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _runs(num_proteins: int, _: Path) -> Costs:
    """Count the runs that each shard is gathered from, from the sizes of the runs. Nothing is written."""
    limits = Limits.for_workers(default_workers())
    num_runs = -(-num_proteins // limits.block_records)
    run_bytes = limits.block_records * TEXT_PER_PROTEIN
    runs = [Run(str(number), limits.block_records, 0, (0, run_bytes)) for number in range(num_runs)]
    num_shards = min(GRID_CELLS, num_runs * run_bytes // limits.shard_bytes + 1)
    return {"runs per shard": len(groups_to_merge(runs, num_shards)) or len(runs)}


ROWS = (
    Row(
        name="prepare",
        title="preparation of one FASTA file by one process",
        scale=PROTEINS,
        sizes=(100_000, 1_000_000, 10_000_000),
        measure=_one_file,
        unknown="data that Lustre serves; UniRef's real files",
        expected_seconds=240,
    ),
    Row(
        name="files",
        title=f"preparation of FASTA files of {PROTEINS_PER_FILE} proteins",
        scale=FILES,
        sizes=(100, 1_000, 10_000),
        measure=_many_files,
        unknown="a file system with slow metadata",
        expected_seconds=40,
    ),
    Row(
        name="runs",
        title="runs that a shard is gathered from, counted",
        scale=PROTEINS,
        sizes=(10_000_000, 100_000_000, 1_000_000_000),
        measure=_runs,
        unknown="how long the merging of 3 TB takes",
        expected_seconds=1,
    ),
)
