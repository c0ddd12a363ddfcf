"""Split of each labelled protein, by a column or by cluster, never at random.

Homologous proteins share labels, so a random split leaks test answers into the training split. Every rule
refuses equal sequences and members of one cluster in two splits.
"""

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqlm.proteins.config import SplitConfig
from seqlm.training.data.manifest import SPLITS, Settings
from seqlm.training.data.spill import SPLIT_SALT, hash_all
from seqlm.training.data.split_shards import split_numbers
from seqlm.training.data.table_rows import Problems
from seqlm.training.data.workspace import say
from seqlm.training.strict_yaml import shown

from .table import TRUTH, Record, first_of
from .variants.kinds import VARIANT_SPLITS

SplitNumbers = npt.NDArray[np.int8]
"""Position in ``SPLITS`` of each record, or ``LEFT_OUT`` or ``COPY``, shape (N,)."""
TRAIN = SPLITS.index("train")
VALIDATION = SPLITS.index("validation")
TEST = SPLITS.index("test")
SPLIT_WORDS: Mapping[str, int] = {
    "train": TRAIN,
    "training": TRAIN,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
    "dev": VALIDATION,
    "test": TEST,
    "testing": TEST,
}
"""Words for the splits in a column, in lower case."""
LEFT_OUT = -1
"""Number of a record that is in no split."""
COPY = -2
"""Number of a record that is left out, because its sequence is in a held-out split, too."""
OTHER_SETS = re.compile(r"test[-_ ]?\d+|pred|prediction", re.IGNORECASE)
"""Words of biotrainer for further test sets, and for proteins to be predicted. They are left out unless
``task.split.test`` names them."""
SHOWN_LEAKS = 5
HOW_TO_SPLIT = (
    "Give task.split.column with the values that are task.split.validation and task.split.test; or "
    "task.split.cluster=auto, which clusters the proteins by similarity; or task.split.cluster_column; or "
    "task.split.clusters, a table of two columns (protein, cluster); or, for variants of one protein, "
    f"task.split.variants={'|'.join(VARIANT_SPLITS)}"
)


def check_rules_agree(split: SplitConfig) -> None:
    """Raise ValueError if rules contradict each other."""
    rules = _cluster_rules(split)
    if len(rules) > 1:
        raise ValueError(f"task.split: {' and '.join(rules)} are set; keep only one of them")
    both = sorted(set(split.validation) & set(split.test))
    if both:
        raise ValueError(f"task.split: {first_of(both)} is in validation and in test; choose one")
    if split.fold is not None and (split.validation or split.test):
        raise ValueError(
            "task.split: fold chooses the values of validation and test, which are set, too; keep one of them"
        )


def check_rule(split: SplitConfig) -> None:
    """Raise ValueError unless a rule is given or was found, with all that it needs."""
    if split.variants is not None:
        return
    check_rules_agree(split)
    if split.column is None:
        for name in ("validation", "test", "validation_column", "fold"):
            if getattr(split, name) not in ((), None):
                raise ValueError(
                    f"task.split: {name} belongs to task.split.column, which is not given, and the table has "
                    "no column that is known for splits"
                )
        if not _cluster_rules(split):
            raise ValueError(
                "task.split: nothing says which proteins are held out, and a random choice would put "
                f"relatives of the training proteins among them. {HOW_TO_SPLIT}"
            )
        return


def _cluster_rules(split: SplitConfig) -> list[str]:
    """Return the fields that are set of those that split by cluster."""
    names = ("cluster", "cluster_column", "clusters")
    return [name for name in names if getattr(split, name) is not None]


def split_records(
    split: SplitConfig,
    records: Sequence[Record],
    clusters: Sequence[str] | None,
    settings: Settings,
) -> SplitNumbers:
    """Assign every record to a split and refuse leakage.

    Args:
        split: rule of the split.
        records: records of the table.
        clusters: cluster of each record, from ``record_clusters``.
        settings: shares of clusters in each split, if clusters decide.

    Raises:
        ValueError: if a split has no protein, or a sequence or a cluster is in two.
    """
    if split.column is not None:
        numbers = _by_column(split, records, settings)
    else:
        assert clusters is not None
        # The hash of data preparation, so that both hold out the same clusters.
        hashes = hash_all([cluster.encode() for cluster in clusters], SPLIT_SALT)
        numbers = split_numbers(hashes, settings)
    # Words of a column name a test split only if there is one.
    has_test = bool(split.test) if split.column is not None else settings.test_fraction > 0
    wanted = [TRAIN, VALIDATION, TEST] if has_test else [TRAIN, VALIDATION]
    for number in wanted:
        if not (numbers == number).any():
            advice = f"set other values of the column {split.column!r}"
            if split.column is None:
                advice = (
                    f"there are {len(set(clusters or ()))} clusters for data.validation_fraction "
                    f"{settings.validation_fraction} and data.test_fraction {settings.test_fraction}: "
                    "give more clusters, or larger shares; variants of one protein, all of them "
                    f"relatives, are split by task.split.variants={'|'.join(VARIANT_SPLITS)}"
                )
            raise ValueError(
                f"none of the {len(records)} proteins is in the {SPLITS[number]} split; {advice}"
            )
    _refuse_leaks("sequence", numbers, records, [record.tokens for record in records])
    if clusters is not None:
        _refuse_leaks("cluster", numbers, records, clusters)
    return numbers


def record_clusters(
    split: SplitConfig, records: Sequence[Record], table: Path | None
) -> list[str] | None:
    """Return the cluster of every record, from the column or the table; None if neither is configured.

    Raises:
        ValueError: for records without a cluster.
    """
    if table is not None:
        return _from_table(table, records)
    return (
        None if split.cluster_column is None else _texts("cluster", split.cluster_column, records)
    )


def _texts(what: str, column: str, records: Sequence[Record]) -> list[str]:
    """Return the text of every record in a column; an empty cell is an error."""
    problems = Problems()
    texts = []
    for record in records:
        cell = record.cells[column]
        if isinstance(cell, str):
            texts.append(cell)
        else:
            problems.add(record.where, f"record {record.id} has no {what} in column {column!r}")
    problems.raise_if_any(f"the {what} column {column!r}")
    return texts


def _by_column(split: SplitConfig, records: Sequence[Record], settings: Settings) -> SplitNumbers:
    """Return the splits that a column names, by its values, its folds or words such as ``train``."""
    assert split.column is not None
    values = _texts("split", split.column, records)
    found = Counter(values)
    held_out = split if split.fold is None else _with_fold(split, found)
    unknown = [value for value in (*held_out.validation, *held_out.test) if value not in found]
    if unknown:
        raise ValueError(
            f"task.split: the column {split.column!r} has no value {unknown[0]!r}; it has {_some(found)}"
        )
    by_words = not held_out.validation
    places = _places_of_words(split, found) if by_words else {}
    places |= dict.fromkeys(held_out.validation, VALIDATION)
    places |= dict.fromkeys(held_out.test, TEST)
    numbers = np.array([places.get(value, TRAIN) for value in values], dtype=np.int8)
    if split.validation_column is not None:
        numbers[_marked(split.validation_column, records) & (numbers == TRAIN)] = VALIDATION
    if by_words:
        _leave_out_copies(numbers, records)
        if not (numbers == VALIDATION).any():
            _choose_validation(numbers, records, settings)
    return numbers


def _places_of_words(split: SplitConfig, found: Counter[str]) -> dict[str, int]:
    """Return the split of each value of a column, all of which are words for splits."""
    places = {}
    for value in found:
        place = SPLIT_WORDS.get(value.lower())
        is_other_test = place == TEST and bool(split.test)
        if value in split.test or is_other_test or OTHER_SETS.fullmatch(value):
            place = LEFT_OUT  # unless it is named for the test, which comes later
        if place is None:
            raise ValueError(
                f"task.split: the column {split.column!r} has {shown(value)}, which names no split; it has "
                f"{_some(found)}. Name those that are held out in task.split.validation and task.split.test, "
                f"or write {', '.join(SPLITS)}. task.split.cluster=auto splits by similarity instead"
            )
        places[value] = place
    return places


def _with_fold(split: SplitConfig, found: Counter[str]) -> SplitConfig:
    """Return the rule that holds out a fold for the test, and the next one for validation."""
    fold = str(split.fold)
    try:
        folds = sorted(found, key=int)
    except ValueError:
        raise ValueError(
            f"task.split.fold: got {fold}, but the column {split.column!r} has {_some(found)}; the values of "
            "folds are whole numbers"
        ) from None
    if fold not in folds:
        raise ValueError(
            f"task.split.fold: got {fold}; the column {split.column!r} has {_some(found)}"
        )
    following = folds[(folds.index(fold) + 1) % len(folds)]
    return replace(split, validation=(following,), test=(fold,))


def _marked(column: str, records: Sequence[Record]) -> npt.NDArray[np.bool_]:
    """Return which records a column marks, shape (N,). An empty cell marks none."""
    problems = Problems()
    marks = []
    for record in records:
        cell = record.cells[column]
        text = cell.lower() if isinstance(cell, str) else ""
        if text and text not in TRUTH:
            problems.add(
                record.where,
                f"record {record.id}: {shown(text)} in column {column!r}; allowed are True, False or nothing",
            )
        marks.append(TRUTH.get(text, False))
    problems.raise_if_any(f"the column {column!r}, which marks validation")
    return np.array(marks, dtype=bool)


def _leave_out_copies(numbers: SplitNumbers, records: Sequence[Record]) -> None:
    """Leave out proteins whose sequence is in the test, or for training in validation, too.

    Published splits have some. The scores would count what was learned by heart.
    """
    last: dict[bytes, int] = {}
    for record, number in zip(records, numbers.tolist(), strict=True):
        last[record.tokens] = max(number, last.get(record.tokens, number))
    copies = []
    for index, record in enumerate(records):
        if TRAIN <= numbers[index] < last[record.tokens]:
            copies.append(index)
    if copies:
        numbers[copies] = COPY
        say(
            f"note: {len(copies)} protein(s) are left out, because their sequences are in a held-out split, "
            f"too, for example {records[copies[0]].id} ({records[copies[0]].where})"
        )


def _choose_validation(
    numbers: SplitNumbers, records: Sequence[Record], settings: Settings
) -> None:
    """Put training proteins into validation if a published split has no such set.

    A hash of the sequence chooses, so relatives of training proteins validate. The test split stays as it is.
    """
    hashes = hash_all([record.tokens for record in records], SPLIT_SALT)
    chosen = split_numbers(hashes, replace(settings, test_fraction=0.0)) == VALIDATION
    chosen &= numbers == TRAIN
    numbers[chosen] = VALIDATION
    say(
        f"note: the table has no validation split; a hash of the sequences chose {chosen.sum():,} of its "
        f"training proteins (data.validation_fraction {settings.validation_fraction})"
    )


def _some(found: Counter[str]) -> str:
    """Return the commonest values of a column for a message."""
    return first_of([f"{value} ({count} proteins)" for value, count in found.most_common(6)])


def _from_table(path: Path, records: Sequence[Record]) -> list[str]:
    """Look up each record in a table of two columns, in either order: mmseqs writes the cluster first."""
    problems = Problems()
    rows: list[tuple[str, str]] = []
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise ValueError(
            f"{path} is not UTF-8 text; give a table of two tab-separated columns"
        ) from None
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split("\t")
        if len(fields) == 2 and all(fields):
            rows.append((fields[0], fields[1]))
        elif line:
            problems.add(
                f"{path}:{number}",
                f"{len(fields)} tab-separated fields, expected protein and cluster",
            )
    problems.raise_if_any(path.name)
    ids = {record.id for record in records}
    orphans: list[str] = []
    swapped = [(member, cluster) for cluster, member in rows]
    for pairs in (rows, swapped):
        cluster_of = dict(pairs)
        if any(cluster_of[member] != cluster for member, cluster in pairs if member in ids):
            continue  # a protein in two clusters, so this is not the column of the proteins
        missing = [record.id for record in records if record.id not in cluster_of]
        if not missing:
            return [cluster_of[record.id] for record in records]
        orphans = min(orphans or missing, missing, key=len)
    some = f"; without a cluster are {first_of(orphans)}" if orphans else ""
    raise ValueError(
        f"{path} does not give each of the {len(records)} proteins one cluster{some}. "
        "Cluster the proteins of this very table again, under the same ids"
    )


def _refuse_leaks(
    what: str, numbers: SplitNumbers, records: Sequence[Record], keys: Sequence[Hashable]
) -> None:
    """Raise ValueError if records with equal keys are in two splits.

    Args:
        what: ``sequence`` or ``cluster``.
        numbers: split of each record.
        records: records of the table.
        keys: sequence or cluster of each record.
    """
    first: dict[Hashable, int] = {}
    leaks: list[tuple[int, int]] = []
    for index, key in enumerate(keys):
        if numbers[index] < 0:
            continue
        earlier = first.setdefault(key, index)
        if numbers[earlier] != numbers[index]:
            leaks.append((earlier, index))
    if not leaks:
        return

    def place(index: int) -> str:
        return f"{records[index].id} ({records[index].where}, {SPLITS[numbers[index]]})"

    lines = []
    for earlier, index in leaks[:SHOWN_LEAKS]:
        shared = keys[index] if what == "cluster" else "the same sequence"
        lines.append(f"  {shared}: {place(earlier)} and {place(index)}")
    if len(leaks) > SHOWN_LEAKS:
        lines.append(f"  ... and {len(leaks) - SHOWN_LEAKS} more")
    advice = (
        "split by cluster instead (task.split.cluster_column or task.split.clusters), or move them into one"
        if what == "cluster"
        else "remove the copies from one split; the scores would count what was learned by heart"
    )
    raise ValueError(
        f"{len(leaks)} protein(s) share a {what} with another split; {advice}:\n" + "\n".join(lines)
    )
