"""Columns of tables of proteins: which one has the ids, and which one the sequences.

A column that the run file names is used as it is. Otherwise ``WELL_KNOWN`` decides, whatever the case of the
names, and the choice is printed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """Kind of cells in a column."""

    ID = "id"
    SEQUENCE = "sequence"
    MUTATION = "mutation"


WELL_KNOWN: Mapping[Role, Sequence[Sequence[str]]] = {
    Role.ID: (
        ("id",),
        ("protein_id", "sequence_id", "seq_id"),
        ("entry", "accession", "acc", "uniprot", "uniprot_id", "uniprot_accession", "uniprotid"),
        ("identifier", "name", "header"),
    ),
    Role.SEQUENCE: (
        ("sequence",),
        (
            "protein_sequence",
            "aa_sequence",
            "sequence_aa",
            "amino_acid_sequence",
            "aa_seq",
            "aaseq",
        ),
        ("mutated_sequence", "mutatedsequence", "mutant_sequence"),
        ("seq", "protein", "peptide", "input"),
    ),
    Role.MUTATION: (
        ("mutation", "mutations"),
        ("mutant", "variant", "hgvs_pro", "aa_mutation", "substitution"),
    ),
}
"""Names of columns by their role, the best first, as ``normalized`` spells them. Names in one place are
equally good: a table that has two of them is ambiguous."""
AIRR_COLUMNS = frozenset(("sequence_id", "sequence", "sequence_aa"))
"""Columns of the AIRR community's rearrangements, whose ``sequence`` is DNA (AIRR standards, 1.4)."""
AIRR_SEQUENCE = "sequence_aa"


@dataclass(frozen=True)
class Chosen:
    """Columns of a table of proteins."""

    id: str | None
    """Column with the ids; None if the table has none, and rows are numbered."""
    sequence: str

    def describe(self) -> str:
        """Return the columns for the line that says what was read."""
        shown = "none, so rows are numbered" if self.id is None else self.id
        return f"id: {shown}, sequence: {self.sequence}"


def normalized(name: str) -> str:
    """Return a name of a column without the differences that programs make in it."""
    return re.sub(r"[\s.-]+", "_", name.strip().strip("\"'").lower())


def well_known_column(header: Sequence[str], role: Role, place: str, field: str) -> str | None:
    """Return the column with a role by its name; None if the table has none.

    Args:
        header: names of all columns.
        role: kind of the cells.
        place: file, for messages.
        field: field of the run file that names the column.

    Raises:
        ValueError: if two columns are equally good.
    """
    names = {name: normalized(name) for name in header}
    for equals in WELL_KNOWN[role]:
        found = [name for name, spelt in names.items() if spelt in equals]
        if len(found) > 1:
            raise ValueError(
                f"{place}: the columns {', '.join(map(repr, found))} may all have the {role.value}; name "
                f"one of them in {field}"
            )
        if found:
            return found[0]
    return None


def is_airr(header: Sequence[str]) -> bool:
    """Return whether a table is one of the AIRR community's, which has DNA in ``sequence``."""
    return {normalized(name) for name in header} >= AIRR_COLUMNS


def is_header(cells: Sequence[str]) -> bool:
    """Return whether a row without context is the header of a table of proteins."""
    sequence_names = {name for names in WELL_KNOWN[Role.SEQUENCE] for name in names}
    return any(normalized(cell) in sequence_names for cell in cells)


def chosen_columns(
    header: Sequence[str],
    place: str,
    *,
    id_column: str | None,
    sequence_column: str | None,
    fields: Mapping[Role, str],
) -> Chosen:
    """Return the columns of a table of proteins.

    Args:
        header: names of all columns.
        place: file, for messages.
        id_column: column with the ids that the run file names; None to find it.
        sequence_column: column with the sequences that the run file names; None to find it.
        fields: field of the run file that names the column of a role.

    Raises:
        ValueError: if the sequences cannot be found, or columns are ambiguous.
    """
    if sequence_column is None and is_airr(header):
        sequence_column = next(name for name in header if normalized(name) == AIRR_SEQUENCE)
    if sequence_column is None:
        sequence_column = well_known_column(header, Role.SEQUENCE, place, fields[Role.SEQUENCE])
    if sequence_column is None:
        raise ValueError(
            f"{place} has no column that is known for sequences; it has {', '.join(map(repr, header))}. Name "
            f"the column in {fields[Role.SEQUENCE]}"
        )
    if id_column is None:
        id_column = well_known_column(header, Role.ID, place, fields[Role.ID])
    return Chosen(id_column, sequence_column)
