"""Export of prepared data in BioNeMo's formats, with the same ids, sequences and splits.

* Pre-training (``bionemo.esm2.data.dataset``): Parquet with the ids of each cluster's members, and SQLite
  with their sequences.
* Fine-tuning (``bionemo.esm2.model.finetune.dataset``): a CSV file for each split, with labels as numbers.
"""

import csv
import hashlib
import itertools
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

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
"""Version of the export's format."""
READ_SPLITS: tuple[Split, ...] = ("train", "validation")
"""Splits that training by BioNeMo reads."""
UNKNOWN = "X"
"""Letter for tokens that are no letter. BioNeMo's tokenizer has this letter, too."""
_BYTES_A_RECORD = 120
"""Bytes per record for its ids in the table, the index and the clusters, and for SQLite's overhead."""


@dataclass(frozen=True)
class Facts:
    """Facts about an export, which its file ``export.json`` contains."""

    format: int
    """Version of the format."""
    made_of: str
    """SHA-256 of the manifest of the prepared data."""
    num_train: int
    """Number of clusters in training; number of proteins if the data have no clusters."""
    num_validation: int
    """The same number in validation."""
    train_residues: int
    """Number of residues of all members in training."""
    train_records: int
    """Number of all members in training."""
    classes: tuple[str, ...] = ()
    """Classes of a task, in the order of their numbers."""


def export_run(config: RunFile) -> Facts:
    """Export a run's prepared data, unless the export exists.

    Raises:
        BeingPrepared: if another process is exporting it.
        ValueError: if there are no prepared data, or BioNeMo could not read what they hold.
    """
    folder = Path(config.data.path)
    files = export_files(folder)
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
        new_files = ExportFiles(partial)
        train = manifest.splits["train"]
        validation = manifest.splits["validation"]
        num_train = train.records
        num_validation = validation.records
        classes: tuple[str, ...] = ()
        if config.task is None:
            for name in READ_SPLITS:
                if not manifest.splits[name].records:
                    raise ValueError(
                        f"{folder} has no proteins in its {name} split, which BioNeMo reads"
                    )
            check_free_space(files.folder, manifest.residues + _BYTES_A_RECORD * manifest.records)
            num_train = _write_split(folder, "train", new_files)
            num_validation = _write_split(folder, "validation", new_files)
        else:
            classes = write_tables(folder, new_files)
        facts = Facts(
            format=FORMAT,
            made_of=_fingerprint(folder),
            num_train=num_train,
            num_validation=num_validation,
            train_residues=train.residues,
            train_records=train.records,
            classes=classes,
        )
        # Written last, so that a copy of the folder with facts is always complete.
        new_files.facts.write_text(json.dumps(asdict(facts), indent=1) + "\n")
    print(
        f"{files.folder} is exported: train {num_train:,}, validation {num_validation:,}",
        file=sys.stderr,
    )
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
    """Return the SHA-256 of the manifest of prepared data."""
    return hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest()


def _write_split(folder: Path, split: Split, files: ExportFiles) -> int:
    """Write the sequences and clusters of a split, and return the number of clusters.

    Training has all members of a cluster, validation only the first one, which represents it.
    """
    is_train = split == "train"
    column = "ur90_id" if is_train else "ur50_id"
    kind = pa.list_(pa.string()) if is_train else pa.string()
    num_clusters = 0
    with (
        closing(sqlite3.connect(files.proteins(split), isolation_level=None)) as connection,
        pq.ParquetWriter(files.clusters(split), pa.schema([(column, kind)])) as writer,
    ):
        # An interrupted export is deleted, so the database need not survive a crash.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE protein (id TEXT NOT NULL, sequence TEXT NOT NULL)")
        connection.execute("BEGIN")
        for batch in read_batches(RecordSplit(folder, split)):
            clusters = batch.clusters()
            if is_train:
                proteins = list(batch.records())
                cluster_ids: list[Any] = [batch.ids[rows.start : rows.stop] for rows in clusters]
            else:
                proteins = [batch.record(rows.start) for rows in clusters]
                cluster_ids = [batch.ids[rows.start] for rows in clusters]
            connection.executemany("INSERT INTO protein VALUES (?, ?)", proteins)
            writer.write_table(pa.table({column: pa.array(cluster_ids, type=kind)}))
            num_clusters += len(clusters)
        connection.execute("COMMIT")
        try:
            # After all rows, because sorting once is faster than updating an index with every row.
            connection.execute("CREATE UNIQUE INDEX protein_id ON protein (id)")
        except sqlite3.IntegrityError:
            (repeated,) = connection.execute(
                "SELECT id FROM protein GROUP BY id HAVING count(*) > 1 LIMIT 1"
            ).fetchone()
            raise ValueError(
                f"{folder}: id {repeated} stands for several proteins of the {split} split, and BioNeMo "
                "finds them by id; give each its own, and prepare the data again"
            ) from None
    return num_clusters


def write_tables(folder: Path, files: ExportFiles) -> tuple[str, ...]:
    """Write a table for each split.

    Returns:
        The classes in the order of BioNeMo's numbers; none for regression.

    Raises:
        ValueError: if BioNeMo would confuse the labels.
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
        records = (record for batch in read_batches(split) for record in batch.records())
        with files.table(name).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(("id", "sequences", "labels"))
            writer.writerows(
                (*record, label) for record, label in zip(records, labels, strict=True)
            )
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


def _residue_texts(
    split: LabelledRecords, units: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> list[str]:
    """Return the classes of the residues of each protein, one letter per residue."""
    classes: Sequence[str] = split.schema.classes
    # BioNeMo reads the file with pandas, which converts texts of digits to numbers.
    wrong = [name for name in classes if len(name) != 1 or not name.isalpha()]
    if wrong:
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
    """Raise ValueError if the installed BioNeMo would number the classes of the splits differently.

    Args:
        folder: prepared data.
        seen: classes of training and of validation, in the order of their numbers; empty for regression.
    """
    if not seen or seen["train"] == seen["validation"] or numbers_classes_once():
        return
    training = " ".join(seen["train"])
    validation = " ".join(seen["validation"])
    raise ValueError(
        f"{folder}: this BioNeMo numbers the classes in each split's own order, and the orders differ: "
        f"{training} in training, {validation} in validation; choose splits that both have every class, and "
        "for labels of residues in the same order of first occurrence"
    )


@dataclass(frozen=True)
class Batch:
    """Consecutive records of a split, with whole clusters."""

    ids: list[str]
    sequences: list[str]
    first_rows: list[int]
    """First row of each cluster; every row if the data have no clusters."""

    def record(self, row: int) -> tuple[str, str]:
        """Return the id and the sequence of a record."""
        return self.ids[row], self.sequences[row]

    def records(self) -> Iterator[tuple[str, str]]:
        """Iterate over the ids and sequences of all records."""
        return zip(self.ids, self.sequences, strict=True)

    def clusters(self) -> list[range]:
        """Return the rows of each cluster."""
        bounds = itertools.pairwise([*self.first_rows, len(self.ids)])
        return [range(start, stop) for start, stop in bounds]


def read_batches(split: RecordSplit) -> Iterator[Batch]:
    """Iterate over the records of a split in their order, without dividing a cluster."""
    tokens_as_text = "".join(
        token if len(token) == 1 else UNKNOWN for token in split.manifest.vocabulary
    )
    letters = np.frombuffer(tokens_as_text.encode(), dtype=np.uint8)
    for batch in split.record_batches:
        tokens = batch.column("tokens")
        text = letters[tokens.values.to_numpy(zero_copy_only=False)].tobytes().decode()
        offsets = tokens.offsets.to_numpy() - tokens.offsets[0].as_py()
        sequences = [text[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]
        first_rows = list(range(len(batch)))
        if "cluster_size" in batch.schema.names:
            first_rows = np.flatnonzero(batch.column("cluster_size").to_numpy()).tolist()
        yield Batch(batch.column("id").to_pylist(), sequences, first_rows)
