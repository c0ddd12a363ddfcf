"""Measured variants of a campaign: tables with a variant, a value, and maybe noise and round in each row."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

import numpy as np

from seqlm.proteins.config import ProposeConfig
from seqlm.proteins.mutations.edits import Variant, WildType
from seqlm.proteins.mutations.errors import MutationError
from seqlm.proteins.mutations.fitting import FIRST_POSITION, check_numbering, parse_variant
from seqlm.proteins.reading.columns import Role, mutation_columns, well_known_column
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.formats import table_of_proteins
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import Reject, rejected, stopped
from seqlm.training.data.source_file import note_once
from seqlm.training.data.table_rows import Cell, Problems, Table, TableUse
from seqlm.training.strict_yaml import shown

from .surrogate import Values

MEASURED = TableUse(
    fields="inference.mutation_column and propose.value_column", other_formats="no list at all"
)
VALUE_FIELD = "propose.value_column"
FIRST_ROUND = 1


@dataclass(frozen=True)
class _Row:
    """Row of a table of measured variants."""

    where: str
    """``file:line``."""
    variant: str
    value: float
    noise: float | None
    """Standard deviation that the table states."""
    round: int


@dataclass
class _Replicates:
    """Measurements of one variant."""

    variant: Variant
    round: int
    """Round of the first measurement."""
    values: list[float] = field(default_factory=list)
    noises: list[float] = field(default_factory=list)
    """Stated standard deviations, one for each value if all rows have one."""


@dataclass(frozen=True)
class Measured:
    """Measured variants, each once, with the means of their replicates."""

    variants: tuple[Variant, ...]
    values: Values
    """Values in the units of the table, the larger the better: those of ``direction: lower`` are negative."""
    rounds: tuple[int, ...]
    """First round of each variant."""
    num_rounds: int
    """Number of the last round; 0 without values."""
    rejects: tuple[Reject, ...]
    counts: Counts


def no_values() -> Measured:
    """Return the state of a campaign before its first round."""
    empty = np.zeros(0)
    return Measured((), Values(empty, empty, empty), (), 0, (), Counts("measurements"))


def read_measured(
    options: ProposeConfig,
    protein: WildType,
    mutation_column: str | None,
    first_position: int,
) -> Measured:
    """Read the tables of ``propose.measured``.

    A table without a column of rounds is one round, and the tables follow each other.

    Args:
        options: section of the run file.
        protein: wild type.
        mutation_column: column with the variants; None to find it by its name.
        first_position: number of the protein's first residue in names.

    Raises:
        ValueError: if a table cannot be read, lacks a column, or numbers the residues in another way.
    """
    rejects = _Rejected()
    rows: list[_Row] = []
    for number, name in enumerate(options.measured, start=FIRST_ROUND):
        rows += _rows(Path(name), number, options, protein.id, mutation_column, rejects)
    if not rows and not rejects.found:
        print("note: propose.measured has no rows, so this is the first round")
        return no_values()
    return _joined(rows, options, protein, first_position, rejects)


def measured_of(
    values: Iterable[tuple[object, object]],
    options: ProposeConfig,
    protein: WildType,
    first_position: int,
) -> Measured:
    """Return measured variants from their values, or lists of replicates, by name.

    Args:
        values: name of each variant with its value or values.
        options: section of the run file.
        protein: wild type.
        first_position: number of the protein's first residue in names.

    Raises:
        ValueError: if a name does not fit the protein, or a value is no finite number.
    """
    rejects = _Rejected()
    rows = []
    for name, found in values:
        if not isinstance(name, str):
            raise ValueError(f"measured: got the name {name!r}; expected names as text")
        # Text, and what is no sequence of numbers, is its own only value.
        is_single = isinstance(found, str) or not isinstance(found, Iterable)
        replicates = [found] if is_single else list(found)  # type: ignore[call-overload]
        if not replicates:
            raise ValueError(f"measured: {shown(name)} has no value; leave it out")
        for value in replicates:
            if not isinstance(value, Real) or not math.isfinite(value):
                raise ValueError(
                    f"measured: {shown(name)} has {shown(str(value))}; expected a finite number"
                )
            rows.append(_Row("measured", name, float(value), None, FIRST_ROUND))
    joined = _joined(rows, options, protein, first_position, rejects, "first_position")
    if rejects.found:
        raise ValueError(rejects.found[0].text)
    return joined


def _joined(
    rows: Sequence[_Row],
    options: ProposeConfig,
    protein: WildType,
    first_position: int,
    rejects: "_Rejected",
    field: str = FIRST_POSITION,
) -> Measured:
    """Return the variants of rows, each once.

    Args:
        rows: rows that have a name and a value.
        options: section of the run file.
        protein: wild type.
        first_position: number of the protein's first residue in names.
        rejects: record of the rows that do not fit the protein.
        field: name of that number for the user.

    Raises:
        ValueError: if no row fits, or the rows number the residues in another way.
    """
    check_numbering([row.variant for row in rows], protein, first_position, field)
    sign = -1.0 if options.direction == "lower" else 1.0
    found: dict[bytes, _Replicates] = {}
    used = 0
    last_round = 0
    for row in rows:
        try:
            variant = parse_variant(row.variant, protein, first_position, field)
            if not variant.keeps_length:
                raise MutationError(
                    f"{shown(row.variant)} inserts or deletes residues; proposals are substitutions, and "
                    "learn from substitutions only"
                )
        except MutationError as error:
            rejects.add(row.where, str(error), error.kind)
            continue
        used += 1
        last_round = max(last_round, row.round)
        one = found.setdefault(variant.tokens.tobytes(), _Replicates(variant, row.round))
        one.round = min(one.round, row.round)
        one.values.append(sign * row.value)
        if row.noise is not None:
            one.noises.append(row.noise)
    counts = Counts("measurements", used)
    counts.leave_out(rejects.found)
    if not used:
        reason = f"nothing can be used. {counts.line()}"
        if rejects.found:
            reason += f", the first one at {rejects.found[0].text}"
        kind = Kind.NOTHING_USED if rejects.found else Kind.NO_RECORD
        raise stopped(Reader.PROPOSE, Reject(kind, "propose.measured", reason))
    replicates = list(found.values())
    return Measured(
        tuple(one.variant for one in replicates),
        _values(replicates),
        tuple(one.round for one in replicates),
        last_round,
        tuple(rejects.found),
        counts,
    )


def _values(found: Sequence[_Replicates]) -> Values:
    """Return means, numbers of replicates, and variances.

    The variance of one replicate is pooled over the variants with several.
    """
    squares = sum(float(np.var(one.values)) * len(one.values) for one in found)
    freedom = sum(len(one.values) - 1 for one in found)
    return Values(
        np.array([np.mean(one.values) for one in found]),
        np.array([float(len(one.values)) for one in found]),
        np.array([_variance_of_mean(one) for one in found]),
        squares / freedom if freedom else None,
    )


def _variance_of_mean(one: _Replicates) -> float:
    """Return the variance of a mean by the stated noises; 0 unless all of its rows state one."""
    if len(one.noises) < len(one.values):
        return 0.0
    return sum(noise**2 for noise in one.noises) / len(one.noises) ** 2


class _Rejected(Problems):
    """Rows that cannot be used."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Reject] = []

    def add(self, where: str, text: str, kind: str = "") -> None:
        self.found.append(rejected(Reader.PROPOSE, Reject(Kind(kind), where, text)))


def _rows(
    path: Path,
    number: int,
    options: ProposeConfig,
    protein: str,
    mutation_column: str | None,
    rejects: _Rejected,
) -> Iterable[_Row]:
    """Yield the rows of a table that have a variant of the protein and a value.

    Args:
        path: file.
        number: round of the rows if the table has no column of rounds.
        options: section of the run file.
        protein: id of the wild type.
        mutation_column: column with the variants; None to find it by its name.
        rejects: record of the other rows.
    """
    try:
        form = table_of_proteins(path)
        table = Table(path, MEASURED, form)
    except OSError as error:
        raise ValueError(f"propose.measured: {path} cannot be read: {error.strerror}") from None
    columns = mutation_columns(table.header, str(path), mutation_column, None)
    value = options.value_column or well_known_column(
        table.header, Role.LABEL, str(path), VALUE_FIELD
    )
    if value is None:
        listed = ", ".join(map(repr, table.header))
        raise ValueError(
            f"{path} has no column that is known for measured values; it has {listed}. Name the column in "
            f"{VALUE_FIELD}"
        )
    note_once(f"{path} is {table.form.title}; {columns.describe()}, value: {value}")
    wanted = [columns.mutation, value, columns.id, options.noise_column, options.round_column]
    names = [name for name in dict.fromkeys(wanted) if name is not None]
    for where, cells in table.rows(names, rejects):
        if columns.id is not None and _text(cells[columns.id]) not in ("", protein):
            reason = f"the row is of {shown(_text(cells[columns.id]))}, and the protein is {shown(protein)}"
            rejects.add(where, reason, Kind.NO_PROTEIN)
            continue
        try:
            measured = _number(cells[value], value)
            noise = None
            if options.noise_column and cells[options.noise_column] is not None:
                noise = _number(cells[options.noise_column], options.noise_column)
                if noise < 0:
                    raise _BadCell(
                        Kind.BAD_LABEL, f"{options.noise_column}: got {noise}; allowed from 0"
                    )
            turn = _round(cells, options.round_column, number)
        except _BadCell as error:
            rejects.add(where, error.reason, error.kind)
            continue
        yield _Row(where, _text(cells[columns.mutation]), measured, noise, turn)


class _BadCell(Exception):
    """Cell that has no number."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason


def _text(cell: Cell) -> str:
    """Return the text of a cell, the items of a list in one."""
    return ":".join(cell) if isinstance(cell, tuple) else cell or ""


def _number(cell: Cell, column: str) -> float:
    """Return the finite number in a cell.

    Raises:
        _BadCell: if there is none.
    """
    text = _text(cell)
    if not text:
        raise _BadCell(Kind.NO_LABEL, f"the column {shown(column)} is empty")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _BadCell(Kind.BAD_LABEL, f"{shown(column)}: got {shown(text)}; expected a number")
    return number


def _round(cells: dict[str, Cell], column: str | None, number: int) -> int:
    """Return the round of a row.

    Raises:
        _BadCell: if its cell has no whole number from 1.
    """
    if column is None:
        return number
    found = _number(cells[column], column)
    if found != int(found) or found < FIRST_ROUND:
        raise _BadCell(
            Kind.BAD_LABEL,
            f"{shown(column)}: got {found}; expected a whole number from {FIRST_ROUND}",
        )
    return int(found)
