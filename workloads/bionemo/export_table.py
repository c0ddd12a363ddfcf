"""Labelled proteins as the CSV files that BioNeMo fine-tunes on.

BioNeMo numbers classes itself: of sequence tasks by their sorted labels, of residue tasks by the order in
which letters are met in the sorted rows. Where it does so for each file anew, an export whose files would be
numbered differently is refused.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from workloads.esm2.alphabet import TOKENS
from workloads.esm2.finetune.labelled import LabelledSplit
from workloads.esm2.finetune.task_kinds import IGNORED
from workloads.training.data.manifest import Manifest
from workloads.training.records import Split

from .export_files import ExportFiles
from .installed import numbers_classes_once

COLUMNS = ("id", "sequences", "labels")


def write_tables(folder: Path, files: ExportFiles) -> tuple[str, ...]:
    """Write a table for each split; returns the classes by BioNeMo's numbers, none for regression.

    Raises:
        ValueError: for labels that BioNeMo would read as others.
    """
    targets: dict[Split, Path] = {
        "train": files.train_table,
        "validation": files.validation_table,
        "test": files.test_table,
    }
    seen: dict[str, list[str]] = {}
    classes: tuple[str, ...] = ()
    for name, path in targets.items():
        manifest_split = LabelledSplit(folder, "train").manifest.splits[name]
        if not manifest_split.records:
            continue
        split = LabelledSplit(folder, name)
        classes = split.schema.classes
        labels = _label_texts(split)
        if name != "test" and split.schema.kind != "regression":
            seen[name] = class_order(labels, per_residue=split.schema.kind == "residue")
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(COLUMNS)
            writer.writerows(zip(*_ids_and_sequences(folder, split, name), labels, strict=True))
    _check_classes(folder, seen)
    return tuple(seen["train"]) if split.schema.kind == "residue" else classes


def class_order(labels: Iterable[str], *, per_residue: bool) -> list[str]:
    """The classes in the order in which BioNeMo numbers them (``Label2IDTokenizer.build_vocab``)."""
    if per_residue:
        return list(dict.fromkeys(letter for text in sorted(labels) for letter in text))
    return [str(number) for number in sorted({int(label) for label in labels})]


def _ids_and_sequences(folder: Path, split: LabelledSplit, name: Split) -> tuple[list[str], list[str]]:
    ids: list[str] = []
    sequences: list[str] = []
    for batch in read_batches(folder, split.manifest, name):
        ids += batch.ids
        sequences += batch.sequences
    return ids, sequences


def _label_texts(split: LabelledSplit) -> list[str]:
    """Numbers of classes, or measurements; of a residue task a letter a residue."""
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


def _residue_texts(split: LabelledSplit, units: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[str]:
    classes: Sequence[str] = split.schema.classes
    # Of digits alone pandas, by which BioNeMo reads the file, makes numbers.
    if wrong := [name for name in classes if len(name) != 1 or not name.isalpha()]:
        raise ValueError(
            f"task.classes: {', '.join(wrong)}; BioNeMo's residue classes have names of one letter"
        )
    texts = []
    for name, numbers in zip(split.ids(units), split.residue_labels(units), strict=True):
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
        f"{folder}: this BioNeMo numbers the classes of each split by itself, and would number those of "
        f"training ({train}) otherwise than those of validation ({validation}); every class must be in both, "
        "and of residues be met in the same order: choose other splits"
    )


UNKNOWN = "X"
"""For residues that no token stands for; BioNeMo's tokenizer has this one, too."""
_LETTERS = np.frombuffer(
    "".join(token if len(token) == 1 else UNKNOWN for token in TOKENS).encode(), dtype=np.uint8
)


@dataclass(frozen=True)
class Batch:
    ids: list[str]
    sequences: list[str]
    first_rows: list[int]
    """Of each cluster; every row, where the data have no clusters."""

    def clusters(self) -> Iterator[list[str]]:
        """Ids of each cluster's members."""
        for start, stop in zip(self.first_rows, [*self.first_rows[1:], len(self.ids)], strict=True):
            yield self.ids[start:stop]


def read_batches(folder: Path, manifest: Manifest, split: Split) -> Iterator[Batch]:
    """The records of a split in their order; a cluster is never divided."""
    for shard in manifest.splits[split].shards:
        with pa.memory_map(str(folder / shard.file)) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                yield _read(batch)


def _read(batch: pa.RecordBatch) -> Batch:
    tokens = batch.column("tokens")
    offsets = tokens.offsets.to_numpy().tolist()
    text = _LETTERS[tokens.values.to_numpy(zero_copy_only=False)].tobytes().decode()
    base = offsets[0]
    sequences = [text[start - base : stop - base] for start, stop in itertools.pairwise(offsets)]
    first_rows = list(range(len(batch)))
    if "cluster_size" in batch.schema.names:
        first_rows = np.flatnonzero(batch.column("cluster_size").to_numpy()).tolist()
    return Batch(batch.column("id").to_pylist(), sequences, first_rows)
