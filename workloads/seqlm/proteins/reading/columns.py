"""Columns of tables of proteins: which one has the ids, and which one the sequences.

A column that the run file names is used as it is. Otherwise the format decides if it is one of the field
(``field_formats``), and then ``WELL_KNOWN``, whatever the case of the names. The choice is printed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from .field_formats import FieldFormat, field_format


class Role(Enum):
    """Kind of cells in a column."""

    ID = "id"
    SEQUENCE = "sequence"
    MUTATION = "mutation"
    LABEL = "label"
    MASK = "mask of residues"
    SPLIT = "split"


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
        (
            "mutated_sequence",
            "mutatedsequence",
            "mutant_sequence",
            "mutated_seq",
            "mutant_seq",
            "mut_seq",
        ),
        ("seq", "protein", "peptide", "input"),
    ),
    Role.MUTATION: (
        ("mutation", "mutations"),
        ("mutant", "variant", "hgvs_pro", "aa_mutation", "substitution"),
    ),
    Role.LABEL: (
        ("label",),
        ("target",),
        ("score", "dms_score", "fitness"),
    ),
    Role.MASK: (
        ("mask", "residue_mask"),
        ("resolved",),
    ),
    Role.SPLIT: (
        ("split",),
        ("set",),
        ("stage", "subset"),
    ),
}
"""Names of columns by their role, the best first, as ``normalized`` spells them. Names in one place are
equally good: a table that has two of them is ambiguous."""
MUTATION_FIELD = "inference.mutation_column"
"""Field of the run file that names the column with mutations."""
PROTEIN_ID_RANKS = 2
"""Last rank of the names of ids that count in a table of mutations."""
BEFORE_HEADER = ("sep=", "#")
"""Beginnings of lines that programs write before the header: Excel's separator, and comments."""
CELL_OF_ROW = re.compile(r"[A-Z*-]{20,}|(p\.)?[A-Z][a-z]{0,2}\d+[A-Z][a-z]{0,2}")
"""Cell that is a sequence or a substitution, so that its line is a row and no header."""


@dataclass(frozen=True)
class Chosen:
    """Columns of a table of proteins."""

    id: str | None
    """Column with the ids; None if the table has none, and rows are numbered."""
    sequence: str
    format: FieldFormat | None = None
    """Format of the field that the table has."""
    chains: tuple[str, ...] = ()
    """Columns with the sequences of a record's chains; none if ``sequence`` has them all."""

    @property
    def sequences(self) -> tuple[str, ...]:
        """Columns with sequences."""
        return self.chains or (self.sequence,)

    def describe(self) -> str:
        """Return the columns for the line that says what was read."""
        shown_id = "none, so rows are numbered" if self.id is None else self.id
        columns = f"id: {shown_id}, {described_sequences(self.sequences)}"
        return columns if self.format is None else f"{self.format.name}; {columns}"


@dataclass(frozen=True)
class ChosenMutations:
    """Columns of a table of mutations."""

    mutation: str
    id: str | None
    """Column with the protein of each mutation; None if all belong to the only protein of the input."""
    format: FieldFormat | None = None
    """Format of the field that the table has."""

    def describe(self) -> str:
        """Return the columns for the line that says what was read."""
        columns = f"mutation: {self.mutation}"
        if self.id is not None:
            columns += f", id of the protein: {self.id}"
        return columns if self.format is None else f"{self.format.name}; {columns}"


def described_sequences(columns: Sequence[str]) -> str:
    """Return the columns with sequences for the line that says what was read."""
    role = "sequence" if len(columns) == 1 else "chains"
    return f"{role}: {', '.join(columns)}"


def normalized(name: str) -> str:
    """Return a name of a column without the differences that programs make in it."""
    return re.sub(r"[\s.-]+", "_", name.strip().strip("\"'").lower())


def well_known_column(
    header: Sequence[str],
    role: Role,
    place: str,
    field: str,
    last_rank: int | None = None,
) -> str | None:
    """Return the column with a role by its name; None if the table has none.

    Args:
        header: names of all columns.
        role: kind of the cells.
        place: file, for messages.
        field: field of the run file that names the column.
        last_rank: last place of ``WELL_KNOWN`` that counts, from 1; None for all.

    Raises:
        ValueError: if two columns are equally good.
    """
    names = {name: normalized(name) for name in header}
    for equals in WELL_KNOWN[role][:last_rank]:
        found = [name for name, spelt in names.items() if spelt in equals]
        if found:
            return only_one(found, role, place, field)
    return None


def format_of(header: Sequence[str], *, in_fasta: bool = False) -> FieldFormat | None:
    """Return the format of the field that a table has; None if it has none.

    Args:
        header: names of all columns.
        in_fasta: whether the columns are words in the headers of a FASTA file.
    """
    return field_format(map(normalized, header), in_fasta=in_fasta)


def named(header: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of a header with the given normalized names, in the order of these names."""
    columns = {normalized(name): name for name in header}
    return [columns[name] for name in names if name in columns]


def possible_sequences(header: Sequence[str]) -> list[str]:
    """Return all columns of a table that may have sequences by their names."""
    known = format_of(header)
    of_format = () if known is None else known.sequences
    return named(
        header, [*of_format, *(name for names in WELL_KNOWN[Role.SEQUENCE] for name in names)]
    )


def listed(header: Sequence[str]) -> str:
    """Return the names of all columns for a message."""
    return ", ".join(map(repr, header)) or "nothing"


def only_one(found: Sequence[str], role: Role, place: str, field: str) -> str | None:
    """Return the only column that may have a role; None if there is none.

    Raises:
        ValueError: if there are several.
    """
    if len(found) > 1:
        chains = f", or several chains in {field}s" if role is Role.SEQUENCE else ""
        raise ValueError(
            f"{place}: the columns {', '.join(map(repr, found))} may all have the {role.value}; name "
            f"one of them in {field}{chains}"
        )
    return found[0] if found else None


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
    sequence_columns: Sequence[str] = (),
) -> Chosen:
    """Return the columns of a table of proteins.

    Args:
        header: names of all columns.
        place: file, for messages.
        id_column: column with the ids that the run file names; None to find it.
        sequence_column: column with the sequences that the run file names; None to find it.
        fields: field of the run file that names the column of a role.
        sequence_columns: columns with the sequences of a record's chains that the run file names.

    Raises:
        ValueError: if the sequences cannot be found, or columns are ambiguous.
    """
    known = format_of(header)
    if sequence_columns:
        sequence_column = sequence_columns[0]
    if sequence_column is None:
        sequence_column = sequence_column_of(header, known, place, fields[Role.SEQUENCE])
    if id_column is None:
        id_column = id_column_of(header, known, place, fields[Role.ID])
    return Chosen(id_column, sequence_column, known, tuple(sequence_columns))


def sequence_column_of(
    header: Sequence[str], known: FieldFormat | None, place: str, field: str
) -> str:
    """Return the column with the sequences of amino acids.

    Args:
        header: names of all columns.
        known: format of the field that the table has.
        place: file, for messages.
        field: field of the run file that names the column.

    Raises:
        ValueError: if no column is known for sequences, or several are equally good.
    """
    of_format = named(header, known.sequences) if known is not None else []
    column = only_one(of_format, Role.SEQUENCE, place, field)
    if column is None:
        of_nucleotides = named(header, known.nucleotides) if known is not None else []
        others = [name for name in header if name not in of_nucleotides]
        column = well_known_column(others, Role.SEQUENCE, place, field)
    if column is None and known is not None and known.without_sequence is not None:
        raise ValueError(f"{place} is {known.name}, {known.without_sequence}")
    if column is None:
        raise ValueError(
            f"{place} has no column that is known for sequences; it has {listed(header)}. "
            f"{_remedy(header, field)}"
        )
    return column


def _remedy(header: Sequence[str], field: str) -> str:
    """Return what to do about a table without a known column.

    A name in ``field`` would lose the first row of a table that has no header.
    """
    if header and header[0].startswith(BEFORE_HEADER):
        return "This line is no header; remove it, so that the names of the columns come first"
    if any(CELL_OF_ROW.fullmatch(cell.strip()) for cell in header):
        return "This line looks like a row; put a line with the names of the columns before it"
    return f"Name the column in {field}"


def id_column_of(
    header: Sequence[str], known: FieldFormat | None, place: str, field: str
) -> str | None:
    """Return the column with the ids; None if the table has none, and rows are numbered.

    The parameters are those of ``sequence_column_of``.

    Raises:
        ValueError: if several are equally good.
    """
    of_format = named(header, known.ids) if known is not None else []
    column = only_one(of_format, Role.ID, place, field)
    return column or well_known_column(header, Role.ID, place, field)


def mutation_columns(
    header: Sequence[str], place: str, mutation_column: str | None, id_column: str | None
) -> ChosenMutations:
    """Return the columns of a table of mutations.

    Args:
        header: names of all columns.
        place: file, for messages.
        mutation_column: column with the mutations that the run file names; None to find it.
        id_column: column with ids that the run file names for the proteins; this table may have it, too.

    Raises:
        ValueError: if the mutations cannot be found, or columns are ambiguous.
    """
    known = format_of(header)
    if mutation_column is None:
        of_format = named(header, known.mutations) if known is not None else []
        mutation_column = only_one(of_format, Role.MUTATION, place, MUTATION_FIELD)
    if mutation_column is None:
        mutation_column = well_known_column(header, Role.MUTATION, place, MUTATION_FIELD)
    if mutation_column is None:
        raise ValueError(
            f"{place} has no column that is known for mutations; it has {listed(header)}. "
            f"{_remedy(header, MUTATION_FIELD)}"
        )
    if id_column not in header:
        id_column = None
    has_one_protein = known is not None and bool(known.mutations)
    if id_column is None and not has_one_protein:
        # Names such as accession often stand for something else beside mutations.
        id_column = well_known_column(
            header, Role.ID, place, "inference.id_column", PROTEIN_ID_RANKS
        )
    return ChosenMutations(mutation_column, id_column, known)
