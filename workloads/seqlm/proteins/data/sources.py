"""Public and embedded proteins that ``data.source`` knows by a word."""

from pathlib import Path

from seqlm.training.data.transfer import SourceKind

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
)
