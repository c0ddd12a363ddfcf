"""Export of prepared data in BioNeMo's formats, with the same ids, sequences and splits.

Pre-training (``bionemo.esm2.data.dataset``): Parquet with the ids of each cluster's members, SQLite with
their sequences. Fine-tuning (``bionemo.esm2.model.finetune.dataset``): a CSV a split, labels as numbers.
"""

import csv
import hashlib
import itertools
import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seqlm.runs.run_file import RunFile
from seqlm.training.data.labelled_records import LabelledRecords
from seqlm.training.data.manifest import IGNORED, MANIFEST_FILE, Manifest
from seqlm.training.data.workspace import check_free_space, workspace
from seqlm.training.records import RecordSplit, Split

from .files import ExportFiles, export_files
from .installed import numbers_classes_once

FORMAT = 1
READ_SPLITS: tuple[Split, ...] = ("train", "validation")
"""Splits that training by BioNeMo reads."""
_BYTES_A_RECORD = 120
"""Bytes of ids in the table, its index and the clusters, and of SQLite's overhead per row."""


@dataclass(frozen=True)
class Facts:
    format: int
    made_of: str
    """SHA-256 of the manifest of the prepared data."""
    num_train: int
    """Clusters of training. Without clusters, each protein counts as one. Likewise in the other fields."""
    num_validation: int
    train_residues: int
    """Residues of all members."""
    train_records: int
    classes: tuple[str, ...] = ()
    """Classes of a task, in the order of their numbers."""


def export_run(config: RunFile) -> Facts:
    """Export a run's prepared data, unless the export exists.

    Raises:
        BeingPrepared: if another process is exporting it.
        ValueError: if there are no prepared data, or BioNeMo could not read what they hold.
    """
    folder, files = Path(config.data.path), export_files(config.data.path)
    manifest = Manifest.load(folder)
    facts = read_facts(files)
    if facts is not None:
        if facts.format == FORMAT and facts.made_of == _fingerprint(folder):
            return facts
        raise ValueError(
            f"{files.folder} is an export of other data than {folder} has now; delete it to export again, or "
            "choose another data.path"
        )
    with workspace(files.folder) as partial:
        made = ExportFiles(partial)
        train = manifest.splits["train"]
        classes: tuple[str, ...] = ()
        if config.task is None:
            for name in READ_SPLITS:
                if not manifest.splits[name].records:
                    raise ValueError(f"{folder} has no proteins in its {name} split, which BioNeMo reads")
            check_free_space(files.folder, manifest.residues + _BYTES_A_RECORD * manifest.records)
            num_train, num_validation = (_write_split(folder, name, made) for name in READ_SPLITS)
        else:
            classes = write_tables(folder, made)
            num_train, num_validation = (manifest.splits[name].records for name in READ_SPLITS)
        facts = Facts(
            FORMAT, _fingerprint(folder), num_train, num_validation, train.residues, train.records, classes
        )
        for path in sorted(partial.iterdir()):
            _sync(path)
        # Last, so that an export with facts is a whole one wherever the folder is copied to.
        made.facts.write_text(json.dumps(asdict(facts), indent=1) + "\n")
        _sync(made.facts)
    print(f"{files.folder} is exported: train {num_train:,}, validation {num_validation:,}", file=sys.stderr)
    return facts


def read_facts(files: ExportFiles) -> Facts | None:
    """Return the facts of an export, or None if there is no export."""
    try:
        found = json.loads(files.facts.read_text())
    except FileNotFoundError:
        return None
    return Facts(**{**found, "classes": tuple(found["classes"])})


def is_exported(config: RunFile) -> bool:
    """Return whether an export of the current data exists."""
    folder = Path(config.data.path)
    facts = read_facts(export_files(folder))
    if facts is None or not (folder / MANIFEST_FILE).exists():
        return False
    return (facts.format, facts.made_of) == (FORMAT, _fingerprint(folder))


def _fingerprint(folder: Path) -> str:
    return hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()


def _write_split(folder: Path, split: Split, files: ExportFiles) -> int:
    """Write sequences and clusters of a split; returns the number of clusters."""
    is_train = split == "train"
    name, kind = ("ur90_id", pa.list_(pa.string())) if is_train else ("ur50_id", pa.string())
    schema, count = pa.schema([(name, kind)]), 0
    with (
        closing(sqlite3.connect(files.proteins(split), isolation_level=None)) as connection,
        pq.ParquetWriter(files.clusters(split), schema) as writer,
    ):
        # What is interrupted is thrown away, so nothing is to be kept safe on the way.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE protein (id TEXT NOT NULL, sequence TEXT NOT NULL)")
        connection.execute("BEGIN")
        for ids, sequences, first_rows in read_batches(RecordSplit(folder, split)):
            # Of training all members, of validation the one that stands for its cluster.
            rows = range(len(ids)) if is_train else first_rows
            connection.executemany(
                "INSERT INTO protein VALUES (?, ?)", ((ids[row], sequences[row]) for row in rows)
            )
            bounds = itertools.pairwise([*first_rows, len(ids)])
            members = [ids[start:stop] if is_train else ids[start] for start, stop in bounds]
            writer.write_table(pa.table({name: pa.array(members, type=kind)}))
            count += len(members)
        connection.execute("COMMIT")
        try:
            # At the end: sorted once, instead of a place looked for with every row.
            connection.execute("CREATE UNIQUE INDEX protein_id ON protein (id)")
        except sqlite3.IntegrityError:
            (repeated,) = connection.execute(
                "SELECT id FROM protein GROUP BY id HAVING count(*) > 1 LIMIT 1"
            ).fetchone()
            raise ValueError(
                f"{folder}: id {repeated} stands for several proteins of the {split} split, and BioNeMo "
                "finds them by id; give each its own, and prepare the data again"
            ) from None
    return count


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_tables(folder: Path, files: ExportFiles) -> tuple[str, ...]:
    """Write a table for each split; returns the classes by BioNeMo's numbers, none for regression.

    Raises:
        ValueError: for labels that BioNeMo would read as others.
    """
    seen: dict[str, list[str]] = {}
    classes: tuple[str, ...] = ()
    manifest = Manifest.load(folder)
    names: tuple[Split, ...] = get_args(Split)
    for name in names:
        if not manifest.splits[name].records:
            continue
        split = LabelledRecords(folder, name)
        classes = split.schema.classes
        labels = _label_texts(split)
        if name != "test" and split.schema.kind != "regression":
            seen[name] = class_order(labels, per_residue=split.schema.kind == "residue")
        records = (record for ids, texts, _ in read_batches(split) for record in zip(ids, texts, strict=True))
        with files.table(name).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(("id", "sequences", "labels"))
            writer.writerows((*record, label) for record, label in zip(records, labels, strict=True))
    _check_classes(folder, seen)
    return tuple(seen["train"]) if split.schema.kind == "residue" else classes


def class_order(labels: Iterable[str], *, per_residue: bool) -> list[str]:
    """Return the classes in the order in which BioNeMo numbers them (``Label2IDTokenizer.build_vocab``)."""
    if per_residue:
        return list(dict.fromkeys(letter for text in sorted(labels) for letter in text))
    return [str(number) for number in sorted({int(label) for label in labels})]


def _label_texts(split: LabelledRecords) -> list[str]:
    """Return numbers of classes or measurements, or one letter per residue for a residue task."""
    units = np.arange(split.num_units)
    schema = split.schema
    if schema.kind == "residue":
        return _residue_texts(split, units)
    values = split.labels(units)
    if schema.kind == "multilabel" or values.shape[1] != 1:
        raise ValueError(
            f"{schema.kind} task with columns {', '.join(schema.columns)}: BioNeMo takes one label"
        )
    column = values[:, 0]
    if schema.kind == "regression":
        return [repr(float(value)) for value in column]
    return [str(int(value)) for value in column]


def _residue_texts(split: LabelledRecords, units: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str]:
    classes: Sequence[str] = split.schema.classes
    # Of digits alone pandas, by which BioNeMo reads the file, makes numbers.
    if wrong := [name for name in classes if len(name) != 1 or not name.isalpha()]:
        raise ValueError(
            f"task.classes: {', '.join(wrong)}; BioNeMo's residue classes have names of one letter"
        )
    texts = []
    for name, numbers in zip(split.ids(units), split.token_labels(units), strict=True):
        if (numbers == IGNORED).any():
            raise ValueError(
                f"{name} has residues without a class; BioNeMo would need a column of masks, which pandas "
                "reads as a number: leave such proteins out of the table for BioNeMo"
            )
        texts.append("".join(classes[number] for number in numbers.tolist()))
    return texts


def _check_classes(folder: Path, seen: dict[str, list[str]]) -> None:
    if not seen or seen["train"] == seen["validation"] or numbers_classes_once():
        return
    train, validation = " ".join(seen["train"]), " ".join(seen["validation"])
    raise ValueError(
        f"{folder}: this BioNeMo numbers the classes in each split's own order, and the orders differ: "
        f"{train} in training, {validation} in validation; choose splits that both have every class, and for "
        "labels of residues in the same order of first occurrence"
    )


UNKNOWN = "X"
"""Letter for residues without a token. BioNeMo's tokenizer has this letter, too."""


def read_batches(split: RecordSplit) -> Iterator[tuple[list[str], list[str], list[int]]]:
    """Iterate over the records of a split in their order, without dividing a cluster.

    Yields:
        Ids, sequences, and the first row of each cluster, or every row if the data have no clusters.
    """
    tokens_as_text = "".join(token if len(token) == 1 else UNKNOWN for token in split.manifest.vocabulary)
    letters = np.frombuffer(tokens_as_text.encode(), dtype=np.uint8)
    for batch in split.record_batches:
        tokens = batch.column("tokens")
        offsets = tokens.offsets.to_numpy().tolist()
        text = letters[tokens.values.to_numpy(zero_copy_only=False)].tobytes().decode()
        base = offsets[0]
        sequences = [text[start - base : stop - base] for start, stop in itertools.pairwise(offsets)]
        first_rows = list(range(len(batch)))
        if "cluster_size" in batch.schema.names:
            first_rows = np.flatnonzero(batch.column("cluster_size").to_numpy()).tolist()
        yield batch.column("id").to_pylist(), sequences, first_rows
