"""Convert a table of labelled proteins to a folder of shards in the format of pre-training, with labels.

The table is held in memory, which a set of labelled proteins fits; what pre-trains does not, and has
``data/prepare.py``. The result does not depend on the order of the table's rows.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from seqlm.proteins.alphabet import TOKENS
from seqlm.proteins.config import TaskConfig
from seqlm.proteins.data.plausibility import Implausible
from seqlm.proteins.data.prepare import one_file
from seqlm.proteins.data.similarity import similar_across_splits, similarity_warning
from seqlm.proteins.data.sources import PROTEINS
from seqlm.runs.run_file import RunFile
from seqlm.training.data.labelled_records import LABELS_FILE
from seqlm.training.data.manifest import MANIFEST_FILE, SPLITS, Manifest, Settings
from seqlm.training.data.spill import hash_all
from seqlm.training.data.transfer import fetch, local_files
from seqlm.training.data.workspace import (
    check_same,
    differences_of,
    existing_manifest,
    say,
    source_file,
    workspace,
)

from .clustering import similarity_clusters
from .labelled import write_split
from .labels import Labels, LabelSchema, class_counts, read_labels, save_schema
from .splits import TRAIN, SplitNumbers, check_rule, record_clusters, split_records
from .table import first_of, read_records
from .task_kinds import TASK_KINDS

TABLES = replace(
    PROTEINS,
    sample=Path(__file__).parent / "sample" / "localization.csv.gz",
    addresses={
        "deeploc2": "https://services.healthtech.dtu.dk/services/DeepLoc-2.0/data/"
        "Swissprot_Train_Validation_dataset.csv",
    },
)
"""``task.table``: of a folder, its FASTA files."""


def prepare_table(config: RunFile) -> Manifest:
    """Prepare the table of a fine-tuning run, or return at once if ``data.path`` holds the result.

    Raises:
        ValueError: for anything wrong with the table, its labels, its splits or the output folder; nothing
            is left behind.
    """
    task, out = config.task, Path(config.data.path)
    assert task is not None, "a run without task: has no table"
    check_rule(task.split)
    downloads = Path(config.data.downloads)
    files = {path: name for name in task.table for path in fetch(name, downloads, TABLES)}
    labels_file = one_file("task.labels", task.labels, downloads, TABLES)
    clusters_file = one_file("task.split.clusters", task.split.clusters, downloads, TABLES)
    others = ((labels_file, task.labels), (clusters_file, task.split.clusters))
    sources = files | {path: name for path, name in others if path is not None and name is not None}
    settings = _settings(config)
    data_task = _data_fields(task)
    manifest = existing_manifest(out, sources, settings)
    if manifest is not None:
        check_same(out, _differences(out, data_task))
        say(f"{out} is already prepared: {manifest.sizes} proteins")
        return manifest

    split_columns = [name for name in (task.split.column, task.split.cluster_column) if name is not None]
    records = read_records(
        list(files),
        labels_file,
        id_column=task.id_column,
        sequence_column=task.sequence_column,
        columns=list(dict.fromkeys([*task.label_columns, *split_columns])),
    )
    implausible = Implausible()
    implausible.look_at([record.id for record in records], [record.tokens for record in records])
    if not config.data.allow_nucleotides:
        implausible.refuse_nucleotides(", ".join(path.name for path in files))
    labels = read_labels(TASK_KINDS[task.kind], task.label_columns, task.classes, records)
    clusters: list[str] | None
    clustered_by = None
    if task.split.cluster == "auto":
        say(f"clustering {len(records):,} proteins by similarity")
        clusters, clustered_by = similarity_clusters(records)
        say(f"{len(set(clusters)):,} clusters, by {clustered_by}")
    else:
        clusters = record_clusters(task.split, records, clusters_file)
    numbers = split_records(task.split, records, clusters, settings)
    # Shuffled by a hash of the sequence; equal ones are ordered by id.
    keys = hash_all([record.tokens for record in records], settings.seed).tolist()
    order = sorted(range(len(records)), key=lambda i: (keys[i], records[i].tokens, records[i].id))
    labelled = [index for index in order if labels.has_any(index)]
    # Of equal sequences with equal labels the smallest id stays; leaks were refused before.
    first: dict[tuple[bytes, bytes], int] = {}
    for index in labelled:
        first.setdefault((records[index].tokens, labels.arrays[index].tobytes()), index)
    kept = list(first.values())
    _check_labelled(labels, numbers, kept)
    contradictions = len(kept) - len({records[index].tokens for index in kept})
    with workspace(out) as folder:
        splits = {
            name: write_split(
                folder, name, [i for i in kept if numbers[i] == number], records, labels, clusters
            )
            for number, name in enumerate(SPLITS)
        }
        manifest = Manifest(
            sources=tuple(sorted(source_file(path, name) for path, name in sources.items())),
            settings=settings,
            duplicates_dropped=len(labelled) - len(kept),
            splits=splits,
            vocabulary=TOKENS,
            similar=similar_across_splits(folder, splits),
        )
        manifest.save(folder)
        facts = {
            "task": data_task,
            "unlabelled_dropped": len(records) - len(labelled),
            "contradicting_labels": contradictions,
            "clustered_by": clustered_by,
        }
        save_schema(folder, labels.schema, facts)
    say(f"{out} is prepared: {manifest.sizes} proteins")
    for warning in [*implausible.warnings(), *similarity_warning(manifest)]:
        say(warning)
    if len(records) > len(labelled):
        say(f"note: {len(records) - len(labelled)} protein(s) have no label and were left out")
    if contradictions:
        say(f"note: {contradictions} protein(s) repeat another's sequence with other labels; all are kept")
    return manifest


def paths_read(config: RunFile) -> list[str]:
    """Files and folders that preparing the table reads, besides what is fetched or the code brings."""
    task = config.task
    assert task is not None, "a run without task: has no table"
    return local_files([*task.table, task.labels, task.split.clusters], TABLES)


def is_prepared(config: RunFile) -> bool:
    """Return whether ``data.path`` holds a run's table. The table itself may be missing.

    Raises:
        ValueError: if the prepared data are damaged.
    """
    task, out = config.task, Path(config.data.path)
    assert task is not None, "a run without task: has no table"
    if not (out / MANIFEST_FILE).exists() or not (out / LABELS_FILE).exists():
        return False
    manifest = Manifest.load(out)
    names = {name for name in (*task.table, task.labels, task.split.clusters) if name is not None}
    return (
        manifest.settings == _settings(config)
        and {source.name for source in manifest.sources} == names
        and not _differences(out, _data_fields(task))
    )


def _settings(config: RunFile) -> Settings:
    assert config.task is not None
    by_cluster = config.task.split.column is None
    shares = (config.data.validation_fraction, config.data.test_fraction) if by_cluster else (0.0, 0.0)
    return Settings(config.data.seed, *shares, members=False)


def _data_fields(task: TaskConfig) -> dict[str, Any]:
    """Return the fields of a task that determine its data, as in JSON. Sources are compared by content."""
    fields = asdict(task)
    fields |= {f"split.{name}": value for name, value in fields["split"].items()}
    for name in ("class_weights", "baselines", "table", "labels", "split", "split.clusters"):
        del fields[name]
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


def _differences(out: Path, wanted: dict[str, Any]) -> list[str]:
    return differences_of(LabelSchema.load(out)[1].get("task", {}), wanted, "task.")


def _check_labelled(labels: Labels, numbers: SplitNumbers, rows: Sequence[int]) -> None:
    """Every split has a protein with a label, and that of training one of each class or measurement.

    Args:
        labels: of all records.
        numbers: split of each record.
        rows: records that are kept, which have a label.
    """
    for number in sorted({*numbers.tolist()} - {*numbers[rows].tolist()}):
        raise ValueError(
            f"none of the {(numbers == number).sum()} protein(s) of the {SPLITS[number]} split has a label "
            f"in {first_of(labels.schema.columns)}; hold out others, or fill in their labels"
        )
    missing = _never_trained(labels, [index for index in rows if numbers[index] == TRAIN])
    if missing:
        raise ValueError(
            f"the training split has no example of {first_of(missing)}; leave the class or column out of the "
            "task, or give the training split a protein with it"
        )


def _never_trained(labels: Labels, rows: Sequence[int]) -> list[str]:
    """Classes and measurements that none of the records has."""
    schema = labels.schema
    values = np.concatenate([labels.arrays[index] for index in rows])
    if schema.task.measured:
        known = np.isfinite(values.reshape(len(rows), -1)).any(axis=0).tolist()
        return [name for name, is_known in zip(schema.columns, known, strict=True) if not is_known]
    counts = class_counts(schema, [values])
    if schema.classes:
        return [name for name, count in zip(schema.classes, counts[0], strict=True) if not count]
    return [
        f"{name} = {value}"
        for name, pair in zip(schema.columns, counts, strict=True)
        for value, count in enumerate(pair)
        if not count
    ]
