"""Files of proteins that a preparation reads, and public ones that have a short name in ``data.source``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seqlm.proteins.reading.columns import format_of, sequence_column_of
from seqlm.proteins.reading.formats import table_of_proteins
from seqlm.proteins.structures.formats import STRUCTURE_SUFFIXES, format_of_file
from seqlm.training.data.compressions import COMPRESSIONS
from seqlm.training.data.source_file import Source
from seqlm.training.data.table_forms import TABLE_SUFFIXES
from seqlm.training.data.transfer import SourceKind


@dataclass(frozen=True)
class NamedColumns:
    """Columns of tables that the run file names; None finds them by their names."""

    id: str | None = None
    sequence: str | None = None


FOUND_BY_NAME = NamedColumns()


@dataclass(frozen=True)
class ProteinFiles:
    """Existing files that a preparation reads."""

    proteins: Sequence[Path]
    """FASTA files and tables, in any form that is read."""
    membership: Path | None = None
    """Table of the clusters of which the proteins are members. None: each protein stands for itself."""
    names: Sequence[str] | None = None
    """Names of ``paths`` in the manifest; by default those of the files."""
    allow_nucleotides: bool = False
    """Whether DNA and RNA are taken for proteins."""
    columns: NamedColumns = FOUND_BY_NAME
    """Columns of tables."""

    @property
    def paths(self) -> list[Path]:
        """Files of proteins, then the table of the clusters."""
        return [*self.proteins, *([] if self.membership is None else [self.membership])]

    @property
    def manifest_names(self) -> list[str]:
        """Names of ``paths`` in the manifest."""
        return [path.name for path in self.paths] if self.names is None else list(self.names)


def is_fasta(path: Path) -> bool:
    """Return whether the content of a file is FASTA, whatever its name.

    Raises:
        ValueError: if the content cannot be read.
    """
    with Source(path) as source:
        return source.peek().lstrip().startswith(b">")


def is_fasta_or_structure(path: Path) -> bool:
    """Return whether the content of a file is FASTA or a structure, whatever its name.

    Raises:
        ValueError: if the content cannot be read.
    """
    return is_fasta(path) or format_of_file(path) is not None


def is_proteins(path: Path) -> bool:
    """Return whether the content of a file is FASTA, a table of proteins or a structure.

    Raises:
        ValueError: if the content cannot be read, or no column is known for sequences.
    """
    form = table_of_proteins(path)
    if form is None:
        return is_fasta(path)
    from seqlm.training.data.table_rows import Table, TableUse  # imports pyarrow

    field = "data.sequence_column"
    header = Table(path, TableUse(field, "FASTA"), form).header
    return bool(sequence_column_of(header, format_of(header), str(path), field))


def _also_compressed(suffixes: Sequence[str]) -> tuple[str, ...]:
    """Return suffixes of files, plain and compressed."""
    compressions = ["", *(one.suffix for one in COMPRESSIONS.values())]
    return tuple(suffix + compression for suffix in suffixes for compression in compressions)


_FASTA_SUFFIXES = (".fasta", ".fa", ".faa", ".fas", ".pep")
_CURRENT_RELEASE = "https://ftp.uniprot.org/pub/databases/uniprot/current_release"
PROTEINS = SourceKind(
    name="FASTA or structure",
    suffixes=_also_compressed((*_FASTA_SUFFIXES, *STRUCTURE_SUFFIXES)),
    sample=Path(__file__).parent / "sample" / "proteins.fasta.gz",
    addresses={
        "uniref50": f"{_CURRENT_RELEASE}/uniref/uniref50/uniref50.fasta.gz",
        "uniref90": f"{_CURRENT_RELEASE}/uniref/uniref90/uniref90.fasta.gz",
        "idmapping": f"{_CURRENT_RELEASE}/knowledgebase/idmapping/idmapping_selected.tab.gz",
    },
    is_content=is_fasta_or_structure,
)
SOURCES = replace(
    PROTEINS,
    name="protein",
    suffixes=(*PROTEINS.suffixes, *_also_compressed(TABLE_SUFFIXES)),
    is_content=is_proteins,
)
"""Kind of the files that ``data.source`` names."""
