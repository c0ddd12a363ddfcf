"""Formats of structures, recognised by their beginning: PDB and mmCIF. Standard library only."""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from seqlm.training.data.source_file import beginning_of
from seqlm.training.data.table_forms import binary_form


class StructureFormat(Enum):
    """Format of a file with a structure; its value is the suffix of such files."""

    PDB = ".pdb"
    MMCIF = ".cif"


STRUCTURE_SUFFIXES = (".pdb", ".ent", ".cif", ".mmcif")
"""Usual ends of the names of structures."""


@dataclass(frozen=True)
class _Recognition:
    pattern: re.Pattern[str]
    """Beginning of such a file, without blank lines before it."""
    title: str


_PDB_RECORDS = (
    "HEADER",
    "OBSLTE",
    "TITLE",
    "SPLIT",
    "CAVEAT",
    "COMPND",
    "SOURCE",
    "EXPDTA",
    "NUMMDL",
    "AUTHOR",
    "KEYWDS",
    "REVDAT",
    "JRNL",
    "REMARK",
    "PARENT",
    "DBREF",
    "DBREF1",
    "SEQADV",
    "SEQRES",
    "MODRES",
    "HET",
    "HETNAM",
    "HELIX",
    "SHEET",
    "SSBOND",
    "CRYST1",
    "MODEL",
    "ATOM",
    "HETATM",
)
"""Names of the records with which PDB files begin. Of these, PARENT is CASP's, as ESMFold writes it. Programs
that write no header begin with one of the later ones, such as gemmi with HET."""
_NAME_CHARACTERS = 6
"""Characters of the name of a record, with the blanks behind it."""

_RECOGNITIONS = {
    StructureFormat.PDB: _Recognition(
        # A blank or a number follows the name of a record.
        re.compile(
            "(" + "|".join(f"{name:{_NAME_CHARACTERS}}" for name in _PDB_RECORDS) + r")[ \d]"
        ),
        "a PDB structure",
    ),
    StructureFormat.MMCIF: _Recognition(
        re.compile(r"(#[^\n]*\n\s*)*data_\S*\s*\n", re.IGNORECASE), "an mmCIF structure"
    ),
}


def title_of(found: StructureFormat) -> str:
    """Return the name of a format, with its article."""
    return _RECOGNITIONS[found].title


def structure_format(text: str) -> StructureFormat | None:
    """Return the format of a structure by the beginning of its text; None for all other texts."""
    beginning = text.lstrip("\r\n")
    for found, recognition in _RECOGNITIONS.items():
        if recognition.pattern.match(beginning):
            return found
    return None


def format_of_file(path: Path) -> StructureFormat | None:
    """Return the format of a file with a structure; None for all other files that can be read.

    Raises:
        ValueError: if the content cannot be read.
    """
    if binary_form(path) is not None:
        return None
    return structure_format(beginning_of(path).text)
