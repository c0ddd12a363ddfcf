"""Convert a table of labelled proteins to a folder of shards in the format of pre-training, with labels.

The table is held in memory, because sets of labelled proteins fit there. Data of pre-training do not, and
have ``data/prepare.py``. The result does not depend on the order of the table's rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from seqlm.proteins.alphabet import TOKENS
from seqlm.proteins.config import EARLIER_COLUMNS, TaskConfig
from seqlm.proteins.data.plausibility import Implausible
from seqlm.proteins.data.prepare import one_file
from seqlm.proteins.data.similarity import similar_across_splits, similarity_warning
from seqlm.proteins.data.sources import PROTEINS
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import REJECTS_FILE, Reject, rejected, write_rejects
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
from seqlm.training.strict_yaml import shown

from .clustering import similarity_clusters
from .labelled import write_split
from .labels import Labels, LabelSchema, class_counts, label_notes, read_labels, save_schema
from .prepared_counts import lines_of
from .splits import (
    COPY,
    LEFT_OUT,
    TRAIN,
    SplitNumbers,
    check_rule,
    check_rules_agree,
    record_clusters,
    split_records,
)
from .table import Record, first_of, read_records
from .task_kinds import TASK_KINDS
from .variants.kinds import VARIANT_SPLITS
from .variants.records import (
    FACT,
    NOT_VARIANTS,
    VariantFacts,
    facts_of,
    measured_variants,
    split_variants,
)
from .variants.wild_type import WildTypeProtein, is_sequence, read_wild_type

TABLES = replace(
    PROTEINS,
    sample=Path(__file__).parent / "sample" / "localization.csv.gz",
    addresses={
        "deeploc2": "https://services.healthtech.dtu.dk/services/DeepLoc-2.0/data/"
        "Swissprot_Train_Validation_dataset.csv",
    },
)
"""Kinds of files that ``task.table`` names; a folder stands for its FASTA files."""
EARLIER_DEFAULTS: Mapping[str, Any] = {
    **EARLIER_COLUMNS,
    "mask_columns": [],
    "split.validation_column": None,
    "split.fold": None,
}
"""Values of fields before columns were found by their names."""
LATER_DEFAULTS: Mapping[str, Any] = {
    "wild_type": None,
    "mutation_column": None,
    "first_position": 1,
    "sequence_columns": [],
    "chains": None,
    "split.variants": None,
    "split.folds": None,
    "split.max_train_mutations": None,
}
"""Values of fields that data of earlier versions lack."""


@dataclass(frozen=True)
class TableFiles:
    """Fetched files of a table, its labels and its clusters."""

    tables: dict[Path, str]
    """Names in the manifest of the files with the proteins."""
    labels: Path | None
    """File of labels beside FASTA."""
    mask: Path | None
    """File of masks."""
    clusters: Path | None
    """Table of clusters."""
    wild_type: Path | None
    """FASTA file of the wild type; None if the run file has its sequence, or none."""
    sources: dict[Path, str]
    """Names in the manifest of all these files."""


@dataclass(frozen=True)
class Clusters:
    """Clusters of the records of a table."""

    names: Sequence[str] | None
    """Cluster of each record; None if neither a column nor a table gives one."""
    method: str | None = None
    """Sentence on the method, if they were clustered here."""


@dataclass(frozen=True)
class Selection:
    """Records of a table that are kept."""

    rows: Sequence[int]
    """Positions of the kept records, in the order of the shards."""
    num_labelled: int
    """Number of records of the splits with a label."""
    num_other: int
    """Number of records of other sets."""
    num_contradictions: int
    """Number of kept records that repeat another's sequence with other labels."""
    rejects: Sequence[Reject]
    """Records that are left out."""


def prepare_table(config: RunFile) -> Manifest:
    """Prepare the table of a fine-tuning run, or return at once if ``data.path`` holds the result.

    Raises:
        ValueError: for anything wrong with the table, its labels, its splits or the output folder; nothing
            is left behind.
    """
    task = _task_of(config)
    out = Path(config.data.path)
    check_rules_agree(task.split)
    files = _fetched(task, Path(config.data.downloads))
    settings = _settings(config)
    data_task = _data_fields(task)
    manifest = existing_manifest(out, files.sources, settings)
    if manifest is not None:
        check_same(out, _differences(out, data_task))
        say(f"{out} is already prepared: {manifest.sizes} proteins")
        for line in lines_of(out):
            say(line)
        return manifest

    wild_type = _wild_type(task, files)
    table = read_records(task, list(files.tables), files.labels, files.mask, wild_type)
    task = table.task
    check_rule(task.split)
    records = table.records
    implausible = Implausible()
    implausible.look_at([record.id for record in records], [record.residues for record in records])
    if not config.data.allow_nucleotides:
        implausible.refuse_nucleotides(", ".join(path.name for path in files.tables))
    labels = read_labels(
        TASK_KINDS[task.kind], task.label_columns, task.classes, records, task.mask_columns
    )
    for note in label_notes(labels):
        say(note)
    clusters = Clusters(None)
    variants = None
    if task.split.variants is not None:
        variants = measured_variants(
            task,
            records,
            labels,
            wild_type,
            has_ids=table.has_ids,
            earlier_rejects=table.rejects,
        )
        records = variants.records
        labels = variants.labels
        numbers = split_variants(task, variants, settings.validation_fraction)
    else:
        clusters = _clusters(task, records, files.clusters)
        numbers = split_records(task.split, records, clusters.names, settings)
    selection = _selected(records, labels, numbers, settings.seed)
    read_rejects = [*table.rejects, *(variants.rejects if variants is not None else [])]
    rejects = [*read_rejects, *selection.rejects]
    _check_labelled(labels, numbers, selection.rows, task)

    with workspace(out) as folder:
        splits = {}
        for number, name in enumerate(SPLITS):
            rows = [row for row in selection.rows if numbers[row] == number]
            splits[name] = write_split(folder, name, rows, records, labels, clusters.names)
        manifest = Manifest(
            sources=tuple(sorted(source_file(path, name) for path, name in files.sources.items())),
            settings=settings,
            duplicates_dropped=selection.num_labelled - len(selection.rows),
            splits=splits,
            vocabulary=TOKENS,
            similar=None if variants else similar_across_splits(folder, splits),
        )
        manifest.save(folder)
        facts = {
            "task": data_task,
            "unlabelled_dropped": len(records) - selection.num_labelled - selection.num_other,
            "other_sets_dropped": selection.num_other,
            "rowless_dropped": sum(reject.kind is Kind.NO_ROW for reject in read_rejects),
            "contradicting_labels": selection.num_contradictions,
            "clustered_by": clusters.method,
        }
        if variants is not None:
            about = facts_of(task, variants, selection.rows, settings.validation_fraction)
            facts[FACT] = about.as_json
            facts[NOT_VARIANTS] = Counter(reject.kind for reject in read_rejects)
            _warn_unread(variants.wild, about, config.model.max_residues)
        save_schema(folder, labels.schema, facts)
        if rejects:
            write_rejects(folder / REJECTS_FILE, rejects)
    say(f"{out} is prepared: {manifest.sizes} proteins")
    for warning in [*implausible.warnings(), *similarity_warning(manifest)]:
        say(warning)
    if selection.num_contradictions:
        say(
            f"note: {selection.num_contradictions} protein(s) repeat another's sequence with other labels; "
            "all are kept"
        )
    for line in lines_of(out):
        say(line)
    return manifest


def _fetched(task: TaskConfig, downloads: Path) -> TableFiles:
    """Fetch the files of a task."""
    tables = {path: name for name in task.table for path in fetch(name, downloads, TABLES)}
    labels = one_file("task.labels", task.labels, downloads, TABLES)
    mask = one_file("task.mask", task.mask, downloads, TABLES)
    clusters = one_file("task.split.clusters", task.split.clusters, downloads, TABLES)
    wild_type = one_file("task.wild_type", _wild_type_file(task), downloads, TABLES)
    beside = (labels, mask, clusters, wild_type)
    sources = dict(tables)
    for path, name in zip(beside, _files_beside(task), strict=True):
        if path is not None and name is not None:
            sources[path] = name
    return TableFiles(tables, labels, mask, clusters, wild_type, sources)


def _files_beside(task: TaskConfig) -> tuple[str | None, ...]:
    """Return the names of the files beside the proteins: labels, masks, clusters and the wild type."""
    return (task.labels, task.mask, task.split.clusters, _wild_type_file(task))


def _wild_type_file(task: TaskConfig) -> str | None:
    """Return the name of the file of the wild type; None if the run file has its sequence, or none."""
    text = task.wild_type
    return None if text is None or is_sequence(text) else text


def _wild_type(task: TaskConfig, files: TableFiles) -> WildTypeProtein | None:
    """Return the wild type that the run file names; None without one."""
    return None if task.wild_type is None else read_wild_type(task.wild_type, files.wild_type)


def _warn_unread(wild: WildTypeProtein, about: VariantFacts, max_residues: int) -> None:
    """Warn if the model does not read the end of the protein, where variants may differ."""
    if len(wild.tokens) > max_residues:
        say(
            f"warning: {about.wild_type_id} has {len(wild.tokens):,} residues, and the model reads the first "
            f"{max_residues:,} (model.max_residues); variants that differ behind them look the same to it"
        )


def _clusters(task: TaskConfig, records: Sequence[Record], table: Path | None) -> Clusters:
    """Cluster the records by similarity, or read their clusters."""
    if task.split.cluster != "auto":
        return Clusters(record_clusters(task.split, records, table))
    say(f"clustering {len(records):,} proteins by similarity")
    names, method = similarity_clusters(records)
    say(f"{len(set(names)):,} clusters, by {method}")
    return Clusters(names, method)


def _selected(
    records: Sequence[Record], labels: Labels, numbers: SplitNumbers, seed: int
) -> Selection:
    """Leave out records of other sets, those without a label, and repeated sequences with equal labels.

    Of repeated ones the smallest id stays. Equal sequences in several splits were left out or refused before.
    """
    rejects: list[Reject] = []
    first: dict[tuple[bytes, bytes], int] = {}
    num_labelled = 0
    num_other = 0
    for row in _order(records, seed):
        record = records[row]
        if numbers[row] == LEFT_OUT:
            reason = f"record {shown(record.id)} is in a set that task.split.test does not name"
            rejects.append(
                rejected(Reader.FINETUNE, Reject(Kind.OTHER_SET, record.where, reason, record.id))
            )
            num_other += 1
            continue
        if not labels.has_any(row):
            reason = f"record {shown(record.id)} has no label"
            unlabelled = Reject(Kind.NO_LABEL, record.where, reason, record.id)
            rejects.append(rejected(Reader.FINETUNE, unlabelled))
            continue
        num_labelled += 1
        if numbers[row] == COPY:
            reason = f"record {shown(record.id)} has a sequence that a held-out protein has, too"
            rejects.append(Reject(Kind.REPEATED_SEQUENCE, record.where, reason, record.id))
            continue
        kept_row = first.setdefault((record.tokens, labels.arrays[row].tobytes()), row)
        if kept_row != row:
            reason = f"record {shown(record.id)} has the sequence and labels of {shown(records[kept_row].id)}"
            rejects.append(Reject(Kind.REPEATED_SEQUENCE, record.where, reason, record.id))
    kept = list(first.values())
    num_sequences = len({records[row].tokens for row in kept})
    return Selection(
        kept,
        num_labelled=num_labelled,
        num_other=num_other,
        num_contradictions=len(kept) - num_sequences,
        rejects=rejects,
    )


def _order(records: Sequence[Record], seed: int) -> list[int]:
    """Return the positions of the records, shuffled by a hash of the sequence.

    Records with equal sequences are in the order of their ids, so the order of the table does not matter.
    """
    keys = hash_all([record.tokens for record in records], seed).tolist()

    def place(row: int) -> tuple[int, bytes, str]:
        record = records[row]
        return keys[row], record.tokens, record.id

    return sorted(range(len(records)), key=place)


def _task_of(config: RunFile) -> TaskConfig:
    assert config.task is not None, "a run without task: has no table"
    return config.task


def paths_read(config: RunFile) -> list[str]:
    """Return the files and folders that preparing reads, besides what is fetched or the code brings."""
    task = _task_of(config)
    return local_files([*task.table, *_files_beside(task)], TABLES)


def is_prepared(config: RunFile) -> bool:
    """Return whether ``data.path`` holds a run's table. The table itself may be missing.

    Raises:
        ValueError: if the prepared data are damaged.
    """
    task = _task_of(config)
    out = Path(config.data.path)
    if not (out / MANIFEST_FILE).exists() or not (out / LABELS_FILE).exists():
        return False
    manifest = Manifest.load(out)
    names = {name for name in (*task.table, *_files_beside(task)) if name is not None}
    return (
        manifest.settings == _settings(config)
        and {source.name for source in manifest.sources} == names
        and not _differences(out, _data_fields(task))
    )


def _settings(config: RunFile) -> Settings:
    """Return the settings of the manifest. Values of a column leave the shares without effect."""
    data = config.data
    split = _task_of(config).split
    if split.variants is not None:
        has_folds = VARIANT_SPLITS[split.variants].has_folds
        return Settings(
            seed=data.seed,
            validation_fraction=0.0 if has_folds else data.validation_fraction,
            test_fraction=0.0,
            members=False,
        )
    by_share = split.column is None or not (split.validation or split.fold is not None)
    return Settings(
        seed=data.seed,
        validation_fraction=data.validation_fraction if by_share else 0.0,
        test_fraction=data.test_fraction if by_share else 0.0,
        members=False,
    )


def _data_fields(task: TaskConfig) -> dict[str, Any]:
    """Return the fields of a task that determine its data, as in JSON. Sources are compared by content."""
    fields = asdict(task)
    fields |= {f"split.{name}": value for name, value in fields["split"].items()}
    if _wild_type_file(task) is not None:
        fields["wild_type"] = None
    for name in (
        "class_weights",
        "baselines",
        "direction",
        "table",
        "labels",
        "mask",
        "split",
        "split.clusters",
    ):
        del fields[name]
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()
    }


def _differences(out: Path, wanted: dict[str, Any]) -> list[str]:
    there = {**LATER_DEFAULTS, **LabelSchema.load(out)[1].get("task", {})}
    if "mask_columns" in there:
        return differences_of(there, wanted, "task.")
    # An earlier version prepared the data: without masks, and with these columns by default.
    same = dict(there)
    for name, default in EARLIER_DEFAULTS.items():
        if there.get(name, default) == default and not wanted[name]:
            same[name] = wanted[name]
    return differences_of(same, wanted, "task.")


def _check_labelled(
    labels: Labels, numbers: SplitNumbers, rows: Sequence[int], task: TaskConfig
) -> None:
    """Refuse splits without labels, and a training split that lacks a class or measurement.

    Published splits may hold out all examples of a rare class, which is a warning.

    Args:
        labels: labels of all records.
        numbers: split of each record.
        rows: positions of the kept records, which have a label.
        task: task with all its columns.

    Raises:
        ValueError: if no protein of a split has a label, or if the training split has no example of a class
            or measurement.
    """
    without_labels = {*numbers.tolist()} - {*numbers[rows].tolist(), LEFT_OUT, COPY}
    for number in sorted(without_labels):
        raise ValueError(
            f"none of the {(numbers == number).sum()} protein(s) of the {SPLITS[number]} split has a label "
            f"in {first_of(labels.schema.columns)}; hold out others, or fill in their labels"
        )
    missing = _never_trained(labels, [index for index in rows if numbers[index] == TRAIN])
    is_published = task.split.column is not None and not task.split.validation
    if missing and is_published and not task.classes and labels.schema.task.one_of_many:
        say(
            f"warning: the training split has no example of {first_of(missing)}, so it cannot be learned; "
            "held-out examples of it count as mistakes"
        )
    elif missing:
        raise ValueError(
            f"the training split has no example of {first_of(missing)}; leave the class or column out of the "
            "task, or give the training split a protein with it"
        )


def _never_trained(labels: Labels, rows: Sequence[int]) -> list[str]:
    """Return the classes and measurements that none of the records has."""
    schema = labels.schema
    values = np.concatenate([labels.arrays[index] for index in rows])
    if schema.task.measured:
        table = values.reshape(len(rows), -1)
        known = np.isfinite(table).any(axis=0).tolist()
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
