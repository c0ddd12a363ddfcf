"""Growth of inference: reading the input, rejects, contacts, and the map of embeddings."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.growth.preparation import RESIDUES, write_fasta
from benchmarks.growth.processes import run_apart
from benchmarks.growth.row import CPU_SECONDS, PROTEINS, Costs, Row
from seqlm.proteins.contacts import head
from seqlm.proteins.contacts.command import contacts
from seqlm.proteins.explore.projection import transfer
from seqlm.proteins.explore.vectors import VectorFile
from seqlm.proteins.inference.input_parts import InputParts
from seqlm.proteins.inference.output import Output
from seqlm.proteins.inference.records import cut, records_of
from seqlm.proteins.model.pretrained import load_model
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import Reject
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.processes import processes
from tests.workloads.proteins.tiny_models import save_tiny_model

PART_RESIDUES = 500_000
"""Residues of a part, as ``embed`` has it."""
REJECTS_PER_PART = 100_000
FEATURES = 64
"""Features of a synthetic embedding. Memory and time are proportional to them."""
DRAWN_PROTEINS = 5_000
"""Proteins of a map."""
FAMILY_SIZE = 10
ROW_GROUP = 4_096
PER_FAMILY_SPREAD = 0.3


def _config(folder: Path, **inference: object) -> RunFile:
    path = folder / "run.yaml"
    path.write_text(f"name: growth\nruns: {folder / 'runs'}\ntrain: {{precision: fp32}}\n")
    return load_config(path, [f"inference.{name}={value}" for name, value in inference.items()])


def read_input(fasta: str, folder: str) -> int:
    """Read the input as the first process of ``embed`` does, then each part once; return the proteins."""
    config = _config(Path(folder), input=f"[{fasta}]", output=f"{folder}/out.parquet")
    files = InputParts(Path(folder) / "parts")
    num_proteins = 0
    for part in cut(records_of(config), PART_RESIDUES, ""):
        files.write(part)
        num_proteins += len(files.read(part.number, part.planned).proteins)
        files.drop(part.planned)
    return num_proteins


def _input(num_proteins: int, folder: Path) -> Costs:
    fasta = folder / f"{num_proteins}.fasta"
    write_fasta(fasta, num_proteins)
    done = run_apart(read_input, str(fasta), str(folder))
    assert done.result == num_proteins
    fasta.unlink()
    return {CPU_SECONDS: done.cpu_seconds, "MiB": done.peak_mib}


def write_rejects(num_rejects: int, folder: str) -> int:
    """Write parts of rejects alone, join them as ``embed`` does, and return the lines of the list."""
    output = Output(_config(Path(folder), output=f"{folder}/{num_rejects}.parquet"), "embed")
    table = pa.table({"id": ["a"]})
    names: list[str] = []
    for start in range(0, num_rejects, REJECTS_PER_PART):
        stop = min(num_rejects, start + REJECTS_PER_PART)
        rejects = [
            Reject(Kind.EMPTY, f"x.fasta:{line}", "has no sequence") for line in range(start, stop)
        ]
        names.append(f"{len(names):06d}-a.parquet")
        output.write_part(names[-1], table, rejects)
    output.join(names, {"key": "k"})
    with output.rejects.open() as stream:
        return sum(1 for _ in stream)


def _rejects(num_rejects: int, folder: Path) -> Costs:
    done = run_apart(write_rejects, num_rejects, str(folder))
    assert done.result == num_rejects + 1
    return {CPU_SECONDS: done.cpu_seconds, "MiB": done.peak_mib}


def _contacts(num_proteins: int, folder: Path) -> Costs:
    """Predict contacts with a tiny model, and count the files."""
    model = folder / "model"
    if not model.exists():
        save_tiny_model(model)
        weights = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
        head.save(load_model(str(model)), str(model), head.ContactHead(weights, -0.5))
    fasta = folder / f"{num_proteins}.fasta"
    write_fasta(fasta, num_proteins)
    done = run_apart(run_contacts, str(model), str(fasta), str(folder / str(num_proteins)))
    return {CPU_SECONDS: done.cpu_seconds, "files": done.result}


def run_contacts(model: str, fasta: str, folder: str) -> int:
    """Run ``contacts``, and return the number of files that it writes."""
    Path(folder).mkdir()
    fields = {"model": model, "input": f"[{fasta}]", "output": f"{folder}/contacts.csv"}
    with processes() as here:
        contacts(_config(Path(folder), **fields), here)
    return sum(1 for path in (Path(folder) / "contacts").rglob("*") if path.is_file())


def write_vectors(path: Path, num_rows: int) -> None:
    """Write embeddings in families, batch by batch."""
    schema = pa.schema([("id", pa.string()), ("embedding", pa.list_(pa.float32(), FEATURES))])
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(num_rows // FAMILY_SIZE, FEATURES)).astype(np.float32)
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, num_rows, ROW_GROUP):
            count = min(ROW_GROUP, num_rows - start)
            noise = rng.normal(size=(count, FEATURES)).astype(np.float32)
            vectors = centres[rng.integers(0, len(centres), count)] + PER_FAMILY_SPREAD * noise
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), FEATURES)
            names = [f"P{number}" for number in range(start, start + count)]
            writer.write_table(pa.table([names, column], schema=schema))


def draw_vectors(path: str) -> int:
    """Read the vectors and ids of a map's proteins, and return their number."""
    file = VectorFile(Path(path), None)
    rows = np.linspace(0, len(file) - 1, DRAWN_PROTEINS).astype(np.int64)
    vectors = file.checked_rows(rows)
    ids = file.ids_of(rows)
    assert len(ids) == len(vectors)
    return len(ids)


def _map(num_proteins: int, folder: Path) -> Costs:
    path = folder / f"{num_proteins}.parquet"
    write_vectors(path, num_proteins)
    done = run_apart(draw_vectors, str(path))
    path.unlink()
    return {CPU_SECONDS: done.cpu_seconds, "MiB": done.peak_mib}


def transfer_labels(path: str) -> int:
    """Transfer labels from one half of the proteins to all; return how many have a neighbour."""
    file = VectorFile(Path(path), None)
    found = transfer(file.batches, np.arange(len(file)) % 2 == 0)
    return int((found.nearest >= 0).sum())


def _transfer(num_proteins: int, folder: Path) -> Costs:
    path = folder / f"{num_proteins}.parquet"
    write_vectors(path, num_proteins)
    done = run_apart(transfer_labels, str(path))
    assert done.result == num_proteins
    path.unlink()
    return {CPU_SECONDS: done.cpu_seconds}


ROWS = (
    Row(
        name="input",
        title=f"reading the input of inference, {RESIDUES} residues each, in all processes together",
        scale=PROTEINS,
        sizes=(10_000, 100_000, 1_000_000),
        measure=_input,
        unknown="parts on Lustre that 512 processes read",
        expected_seconds=60,
    ),
    Row(
        name="rejects",
        title="list of the rejected records of inference",
        scale=PROTEINS,
        sizes=(10_000, 100_000, 1_000_000),
        measure=_rejects,
        unknown="a list on Lustre",
        expected_seconds=40,
    ),
    Row(
        name="contacts",
        title=f"contacts of proteins of {RESIDUES} residues with a tiny model",
        scale=PROTEINS,
        sizes=(50, 200, 800),
        measure=_contacts,
        unknown="rate on a GPU, where the model is larger",
        expected_seconds=60,
    ),
    Row(
        name="map",
        title=f"reading the embeddings and ids of {DRAWN_PROTEINS:,} proteins for a map, {FEATURES} features",
        scale=PROTEINS,
        sizes=(100_000, 1_000_000, 3_000_000),
        measure=_map,
        unknown="embeddings on Lustre",
        expected_seconds=60,
    ),
    Row(
        name="transfer",
        title=f"transfer of labels from one half of the proteins, {FEATURES} features",
        scale=PROTEINS,
        sizes=(30_000, 100_000, 200_000),
        measure=_transfer,
        unknown="share of nearest proteins that the search misses at this size",
        expected_seconds=100,
    ),
)
