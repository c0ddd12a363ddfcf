"""Formats of files with proteins, recognised by their content: FASTA, tables, structures, and others.

A structure has the form of a table with a row for each protein chain. ``OTHERS`` is the table of text formats
that cannot be read.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from seqlm.proteins.structures.formats import structure_format
from seqlm.training.data.compressions import UnreadableError
from seqlm.training.data.source_file import beginning_of
from seqlm.training.data.table_forms import Layout, TableForm, binary_form, text_form

ALLOWED = "give FASTA, or a table with the sequences"


@dataclass(frozen=True)
class OtherFormat:
    """Text format that cannot be read."""

    pattern: re.Pattern[str]
    """Beginning of such a file, without blank lines before it."""
    description: str
    """Predicate of the message: the format, and what to do."""


def _other(pattern: str, description: str) -> OtherFormat:
    return OtherFormat(re.compile(pattern), description)


OTHERS = (
    _other(r"@[^\n]*\n[A-Za-z.*-]+\r?\n\+", "FASTQ, which has nucleotides; give proteins"),
    _other(r"@(HD|SQ|RG|PG|CO)\t", "SAM, which has nucleotides; give proteins"),
    _other(r"##fileformat=VCF", "VCF, which has nucleotides; give proteins"),
    _other(r"##gff-version", f"GFF, which has places of genes; {ALLOWED}"),
    _other(r"LOCUS {3}", f"a GenBank record; export it as FASTA, or {ALLOWED}"),
    _other(r"ID {3}\S", f"a record of Swiss-Prot or EMBL; export it as FASTA, or {ALLOWED}"),
    _other(r"# STOCKHOLM", f"a Stockholm alignment; {ALLOWED}, without gaps"),
    _other(r"(CLUSTAL|MUSCLE|PROBCONS)", f"a Clustal alignment; {ALLOWED}, without gaps"),
    _other(r"#NEXUS", f"a NEXUS alignment; {ALLOWED}, without gaps"),
    _other(r"[ \t]*\d+[ \t]+\d+[ \t]*\r?\n", f"a PHYLIP alignment; {ALLOWED}, without gaps"),
    _other(r"<\?xml", f"XML; {ALLOWED}"),
    _other(r"(\{|\[\s*[\[{\"])", f"JSON; {ALLOWED}"),
)


def table_of_proteins(path: Path) -> TableForm | None:
    """Return the form of a table or a structure; None for FASTA, and for text that only its reader explains.

    Raises:
        UnreadableError: (a ValueError) if the file has another format, or none that can be read.
        ValueError: if its compressed data are damaged.
    """
    found = binary_form(path)
    if found is not None:
        return found
    beginning = beginning_of(path)
    structure = structure_format(beginning.text)
    if structure is not None:
        from seqlm.proteins.structures.chains import StructureSource  # imports NumPy

        return TableForm(Layout.RECORDS, source=StructureSource(structure))
    form = text_form(beginning, path.name)
    if form is not None and form.first_line > 1:
        return form  # a line of JSON before a table
    description = other_format(beginning.text)
    if description is not None:
        raise UnreadableError(f"{path} is {description}")
    return form


def other_format(text: str) -> str | None:
    """Return what a text is that has a format that cannot be read, and what to do; None for all others."""
    beginning = text.lstrip("\r\n")
    for one in OTHERS:
        if one.pattern.match(beginning):
            return one.description
    return None
