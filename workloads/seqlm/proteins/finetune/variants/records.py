"""Variants of one protein from the records of a table: each once, with the mean of its measurements."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqlm.proteins.config import SplitConfig, TaskConfig
from seqlm.proteins.finetune.labels import Labels
from seqlm.proteins.finetune.table import Record, first_of
from seqlm.proteins.mutations.edits import Variant
from seqlm.proteins.mutations.errors import MutationError
from seqlm.proteins.mutations.fitting import fitted, variant_of
from seqlm.proteins.mutations.names import described
from seqlm.proteins.mutations.spelling import spelt
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import Reject, rejected, stopped
from seqlm.training.data.manifest import SPLITS
from seqlm.training.data.spill import SPLIT_SALT, hash_all
from seqlm.training.data.table_rows import Problems
from seqlm.training.data.workspace import say
from seqlm.training.strict_yaml import shown

from .kinds import FIRST_FOLD, FOLDS, MAX_TRAIN_MUTATIONS, VARIANT_SPLITS, Choice, Placed
from .wild_type import (
    FIELD,
    GIVE_IT,
    POSITION_FIELD,
    NamedSequence,
    WildTypeProtein,
    reverted,
    text_of,
)

FACT = "variants"
"""Name of the facts about the variants in ``labels.json``."""
NOT_VARIANTS = "not_variants"
"""Name of the fact with the numbers of rows that are no variants of the protein, by kind."""
MOST_MUTATIONS = 5
"""Numbers of mutations from here on are counted together, as by ProteinGym."""


@dataclass(frozen=True)
class MeasuredVariants:
    """Variants of one protein with their labels."""

    wild: WildTypeProtein
    records: list[Record]
    """One for each variant, and after them those without a label."""
    num_labelled: int
    """Number of the records with a label."""
    variants: list[Variant]
    """Variant of each record."""
    labels: Labels
    """Labels of each record. Measurements are means over the rows of a variant."""
    num_repeats: int
    """Number of rows that are averaged with another one."""
    rejects: list[Reject]
    """Records that are no variants of the wild type."""


@dataclass(frozen=True)
class VariantFacts:
    """Facts about the variants that are stored with their data."""

    wild_type: str
    """Sequence of the wild type."""
    wild_type_id: str
    first_position: int
    split: str
    """Value of ``task.split.variants``."""
    test: str
    """Choice of the test, for people."""
    averaged: int
    """Number of rows that are averaged with another one."""
    mutations: dict[str, int]
    """Number of variants by their number of mutations."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "VariantFacts | None":
        """Return those in the facts of prepared data; None if these are no variants of one protein."""
        found = facts.get(FACT)
        return None if found is None else cls(**found)

    @property
    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def line(self) -> str:
        """Line about the variants for the user."""
        numbers = ", ".join(f"{count:,} with {name}" for name, count in self.mutations.items())
        text = (
            f"variants of {self.wild_type_id} ({len(self.wild_type)} residues) by number of mutations: "
            f"{numbers}; split: {self.test}"
        )
        if self.averaged:
            text += f"; {self.averaged:,} repeated measurements are averaged with the others of their variant"
        return text


def measured_variants(
    task: TaskConfig,
    records: Sequence[Record],
    labels: Labels,
    wild: WildTypeProtein | None,
    *,
    has_ids: bool,
    earlier_rejects: Sequence[Reject] = (),
) -> MeasuredVariants:
    """Return the variants of a table, each once.

    The result does not depend on the order of the rows.

    Args:
        task: task with all its columns.
        records: records of the table.
        labels: labels of all records.
        wild: wild type that the run file names; None to revert the named mutations.
        has_ids: whether a column has the ids. They are kept if no two variants share one, and otherwise
            variants have their names as ids.
        earlier_rejects: rows that were left out before, for the message if nothing is left.

    Raises:
        ValueError: if there is no wild type, no record is a variant of it, or a variant has several classes.
    """
    if wild is None:
        wild = _reverted(task, records)
    else:
        _note_other_names(task, records, wild)
    problems = Problems()
    rejects: list[Reject] = []
    groups: dict[bytes, list[int]] = {}
    unlabelled: list[int] = []
    parsed: dict[bytes, Variant] = {}
    for row, record in enumerate(records):
        try:
            if record.tokens not in parsed:
                parsed[record.tokens] = variant_of(shown(record.id), record.tokens, wild)
        except MutationError as error:
            reject = Reject(error.kind, record.where, f"record {error}", record.id)
            rejects.append(rejected(Reader.FINETUNE, reject))
            continue
        if labels.has_any(row):
            groups.setdefault(record.tokens, []).append(row)
        else:
            unlabelled.append(row)
    if not any(parsed[tokens].edits for tokens in groups):
        reason = f"no record is a variant of {wild.id} with a label"
        if all_rejects := [*earlier_rejects, *rejects]:
            reason += f"; {len(all_rejects)} do not fit, the first one at {all_rejects[0].text}"
        raise stopped(Reader.FINETUNE, Reject(Kind.NOTHING_USED, FIELD, reason))
    kept: list[Record] = []
    arrays: list[npt.NDArray[Any]] = []
    for rows in groups.values():
        first = min(rows, key=lambda row: (records[row].id, records[row].where))
        kept.append(records[first])
        arrays.append(_joined([labels.arrays[row] for row in rows], labels, kept[-1], problems))
    problems.raise_if_any(
        "the labels; give each variant one class, because only measurements are averaged"
    )
    kept += [records[row] for row in unlabelled]
    arrays += [labels.arrays[row] for row in unlabelled]
    variants = [parsed[record.tokens] for record in kept]
    num_kept = len(groups)
    ids = {record.id for record in kept[:num_kept]}
    if not has_ids or len(ids) < num_kept:
        for index, variant in enumerate(variants[:num_kept]):
            kept[index] = replace(kept[index], id=spelt(variant, task.first_position))
    return MeasuredVariants(
        wild=wild,
        records=kept,
        num_labelled=num_kept,
        variants=variants,
        labels=replace(labels, arrays=arrays, masks=[None] * len(kept)),
        num_repeats=sum(len(rows) - 1 for rows in groups.values()),
        rejects=rejects,
    )


def _reverted(task: TaskConfig, records: Sequence[Record]) -> WildTypeProtein:
    """Return the wild type by reverting the mutations that the table names.

    Raises:
        ValueError: if it names none, or they do not agree.
    """
    column = task.mutation_column
    if column is None:
        raise ValueError(
            f"{FIELD}: got none, and the table has no column that is known for mutations; {GIVE_IT}, or name "
            "the column in task.mutation_column"
        )
    named = [
        NamedSequence(record.where, text_of(record.cells[column]), record.tokens)
        for record in records
    ]
    return reverted(named, task.first_position, f"the column {column!r}")


def _note_other_names(task: TaskConfig, records: Sequence[Record], wild: WildTypeProtein) -> None:
    """Print how many names describe other sequences than those of their rows, which count."""
    column = task.mutation_column
    if column is None:
        return
    others = []
    for record in records:
        name = text_of(record.cells.get(column))
        try:
            description = described(name)
        except MutationError:
            continue
        try:
            is_same = (
                fitted(description, wild, task.first_position).tokens.tobytes() == record.tokens
            )
        except MutationError:
            is_same = False
        if not is_same:
            others.append(f"{shown(name)} ({record.where})")
    if others:
        say(
            f"note: {len(others):,} row(s) have other sequences than their names in the column "
            f"{shown(column)} say, such as {others[0]}; the sequences count. Check the names and "
            f"{POSITION_FIELD}"
        )


def _joined(
    arrays: Sequence[npt.NDArray[Any]], labels: Labels, record: Record, problems: Problems
) -> npt.NDArray[Any]:
    """Return the labels of one variant: the mean of its measurements, or its only class.

    Args:
        arrays: labels of its rows, (columns,) each.
        labels: labels of all records.
        record: record of the variant, for messages.
        problems: record of the variants with several classes.
    """
    if len(arrays) == 1:
        return arrays[0]
    if not labels.schema.task.measured:
        if len({array.tobytes() for array in arrays}) > 1:
            text = f"record {shown(record.id)}: its variant has other labels in another row"
            problems.add(record.where, text, Kind.BAD_LABEL)
        return arrays[0]
    means = []
    for column in np.stack(arrays).T.astype(np.float64).tolist():
        known = [value for value in column if math.isfinite(value)]
        # fsum is exact, so that the order of the rows does not matter.
        means.append(math.fsum(known) / len(known) if known else math.nan)
    return np.array(means, dtype=np.float32)


def split_variants(
    task: TaskConfig, found: MeasuredVariants, validation_fraction: float
) -> npt.NDArray[np.int8]:
    """Assign every record to a split, and return its position in ``SPLITS``, (N,).

    Raises:
        ValueError: if the rule does not take insertions and deletions, or a split has no variant.
    """
    assert task.split.variants is not None
    labelled = slice(found.num_labelled)
    names = [f"{shown(record.id)} ({record.where})" for record in found.records[labelled]]
    words = assigned_splits(task.split, found.variants[labelled], names, validation_fraction)
    # Records without a label are left out later, and do not decide on folds.
    numbers = np.full(len(found.records), SPLITS.index("train"), dtype=np.int8)
    numbers[labelled] = [SPLITS.index(word) for word in words]
    if VARIANT_SPLITS[task.split.variants].by_position:
        _note_several_positions(found, numbers)
    return numbers


def assigned_splits(
    split: SplitConfig,
    variants: Sequence[Variant],
    names: Sequence[str],
    validation_fraction: float,
) -> list[str]:
    """Return the split of each variant: ``train``, ``validation`` or ``test``.

    Args:
        split: rule of the split.
        variants: variants of one protein.
        names: names of the variants for messages.
        validation_fraction: share of the variants for training that validates, if there are no folds.

    Raises:
        ValueError: if the rule does not take insertions and deletions, or a split has no variant.
    """
    assert split.variants is not None
    kind = VARIANT_SPLITS[split.variants]
    choice = choice_of(split, validation_fraction)
    _check_lengths(split.variants, variants, names)
    keys = hash_all([variant.tokens.tobytes() for variant in variants], SPLIT_SALT).tolist()
    placed = [
        Placed(variant.position, variant.num_mutations, key)
        for variant, key in zip(variants, keys, strict=True)
    ]
    positions = {one.position for one in placed if one.position is not None}
    if kind.by_position and len(positions) < choice.folds:
        raise ValueError(
            f"task.split.folds: got {choice.folds}, and the variants have {len(positions)} different first "
            "mutated positions; set fewer folds, or split by variants: random"
        )
    words = kind.assign(placed, choice)
    for word in SPLITS:
        if word in words:
            continue
        advice = "set another fold or fewer folds"
        if not kind.has_folds:
            depths = sorted({one.num_mutations for one in placed})
            advice = (
                f"they have {first_of(list(map(str, depths)))} mutations, task.split.max_train_mutations is "
                f"{choice.max_train_mutations}, and data.validation_fraction is {validation_fraction}"
            )
        raise ValueError(f"none of the {len(words):,} variants is in the {word} split; {advice}")
    return words


def choice_of(split: SplitConfig, validation_fraction: float) -> Choice:
    """Return the numbers of the run file, with their defaults."""
    most = split.max_train_mutations
    return Choice(
        folds=FOLDS if split.folds is None else split.folds,
        fold=FIRST_FOLD if split.fold is None else split.fold,
        max_train_mutations=MAX_TRAIN_MUTATIONS if most is None else most,
        validation_fraction=validation_fraction,
    )


def _check_lengths(kind: str, variants: Sequence[Variant], names: Sequence[str]) -> None:
    """Raise ValueError if variants insert or delete residues, and the split does not take them."""
    if VARIANT_SPLITS[kind].takes_indels:
        return
    others = [
        name for name, variant in zip(names, variants, strict=True) if not variant.keeps_length
    ]
    if others:
        allowed = " and ".join(name for name, one in VARIANT_SPLITS.items() if one.takes_indels)
        raise ValueError(
            f"task.split.variants: got {kind}, and {len(others)} variant(s) insert or delete residues, for "
            f"example {others[0]}; allowed then are {allowed}"
        )


def _note_several_positions(found: MeasuredVariants, numbers: npt.NDArray[np.int8]) -> None:
    """Print how many variants mutate positions of several splits, where folds are those of positions."""
    split_of = {
        variant.position: number
        for variant, number in zip(
            found.variants, numbers[: found.num_labelled].tolist(), strict=False
        )
    }
    num_several = 0
    num_across = 0
    for variant in found.variants[: found.num_labelled]:
        if len(variant.edits) < 2:
            continue
        num_several += 1
        # Positions that no variant has first belong to no fold.
        splits = {split_of.get(edit.start) for edit in variant.edits}
        num_across += len(splits) > 1
    if num_several:
        say(
            f"note: {num_several:,} variants have several mutations and go to the fold of the first one, as "
            f"in ProteinGym's program; {num_across:,} of them also mutate positions of another split or of "
            "no fold. ProteinGym's benchmark leaves such variants out"
        )


def facts_of(
    task: TaskConfig, found: MeasuredVariants, rows: Sequence[int], validation_fraction: float
) -> VariantFacts:
    """Return the facts about the kept variants.

    Args:
        task: task of the run file.
        found: variants.
        rows: positions of the kept records.
        validation_fraction: share of the variants that validate, if there are no folds.
    """
    assert task.split.variants is not None
    choice = choice_of(task.split, validation_fraction)
    test = f"{task.split.variants}, "
    if VARIANT_SPLITS[task.split.variants].has_folds:
        test += f"fold {choice.fold} of {choice.folds}"
    else:
        test += f"at most {choice.max_train_mutations} to train"
    numbers = Counter(found.variants[row].num_mutations for row in rows)
    by_number: Counter[str] = Counter()
    for number in sorted(numbers):
        by_number[class_of_mutations(number)] += numbers[number]
    return VariantFacts(
        wild_type=found.wild.sequence,
        wild_type_id=found.wild.id,
        first_position=task.first_position,
        split=task.split.variants,
        test=test,
        averaged=found.num_repeats,
        mutations=dict(by_number),
    )


def class_of_mutations(number: int) -> str:
    """Return the class of a number of mutations, as it is shown."""
    return f"{MOST_MUTATIONS}+" if number >= MOST_MUTATIONS else str(number)
