"""Files of proteins that a preparation reads, and public ones that have a short name in ``data.source``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seqlm.training.data.source_file import Source
from seqlm.training.data.transfer import SourceKind


@dataclass(frozen=True)
class ProteinFiles:
    """Existing files that a preparation reads."""

    fasta: Sequence[Path]
    """FASTA files, plain or gzip."""
    membership: Path | None = None
    """Table of the clusters of which the proteins are members. None: each protein stands for itself."""
    names: Sequence[str] | None = None
    """Names of ``paths`` in the manifest; by default those of the files."""
    allow_nucleotides: bool = False
    """Whether DNA and RNA are taken for proteins."""

    @property
    def paths(self) -> list[Path]:
        """FASTA files, then the table."""
        return [*self.fasta, *([] if self.membership is None else [self.membership])]

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


_CURRENT_RELEASE = "https://ftp.uniprot.org/pub/databases/uniprot/current_release"
PROTEINS = SourceKind(
    name="FASTA",
    suffixes=(".fasta", ".fasta.gz", ".fa", ".fa.gz", ".faa", ".faa.gz"),
    sample=Path(__file__).parent / "sample" / "proteins.fasta.gz",
    addresses={
        "uniref50": f"{_CURRENT_RELEASE}/uniref/uniref50/uniref50.fasta.gz",
        "uniref90": f"{_CURRENT_RELEASE}/uniref/uniref90/uniref90.fasta.gz",
        "idmapping": f"{_CURRENT_RELEASE}/knowledgebase/idmapping/idmapping_selected.tab.gz",
    },
    is_content=is_fasta,
)
