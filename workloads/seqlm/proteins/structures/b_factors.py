"""Copies of structures with values of residues in the column of B-factors, which viewers show as colours.

A copy has the format of the file, unpacked. Only that column changes: lines of PDB keep all other characters,
and mmCIF keeps all its categories. All models and alternative locations of a residue get its value. All other
atoms get ``OTHER_VALUE``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seqlm.training.strict_yaml import shown
from seqlm.training.whole_file import write_whole

from .chains import Structure, StructureChain
from .formats import StructureFormat
from .parsing import block_with_atoms, content_of, gemmi_of

OTHER_VALUE = 0.0
"""Value of atoms whose residues have none: those of other chains, of ligands and of waters."""
LOWEST = -99.99
HIGHEST = 999.99
"""Values that the column of a PDB file holds."""
ALIGNED_CHARACTERS = 33
"""Widest values of mmCIF that are aligned, so that people can read the columns."""
_CHAIN = slice(20, 22)
_NUMBER = slice(22, 26)
_INSERTION = slice(26, 27)
_B_FACTOR = slice(60, 66)
"""Columns of a PDB file, counted from 0 (wwPDB format 3.30). Names of chains may have two characters."""
_HYBRID_36 = re.compile(r"[A-Z][0-9A-Z]{3}")
"""Number of a residue above 9,999 (hybrid-36)."""
_DECIMALS = 10**4
_FIRST_HYBRID_36 = 10 * 36**3


@dataclass(frozen=True)
class Residue:
    """Residue of a structure, as both formats name it."""

    chain: str
    """Author's name of the chain."""
    number: str
    """Author's number of the residue, with its insertion code."""


@dataclass(frozen=True)
class Copied:
    """Copy of a structure that has been written."""

    path: Path
    num_residues: int
    """Number of residues with a value."""
    chains: tuple[str, ...]
    """Author's names of the chains with values."""

    def line(self, what: str) -> str:
        """Return the line that says what was written."""
        names = ", ".join(shown(name) for name in self.chains)
        return (
            f"wrote {self.path}: {what} in the B-factors of {self.num_residues:,} residues of the chains "
            f"{names}; {OTHER_VALUE:.2f} for all other atoms"
        )


def values_of(chain: StructureChain, by_position: Mapping[int, float]) -> dict[Residue, float]:
    """Return the values of the resolved residues of a chain.

    Args:
        chain: chain.
        by_position: values by the position in the chain, from 0.
    """
    return {
        Residue(chain.name, chain.numbers[position]): value
        for position, value in by_position.items()
        if chain.resolved[position]
    }


def write_copy(structure: Structure, path: Path, values: Mapping[Residue, float]) -> Copied:
    """Write a copy of a structure with values as B-factors; it appears whole or not at all.

    Args:
        structure: structure, whose file is read again.
        path: file to write, with the suffix of the format.
        values: values of residues, which are limited to what the column of a PDB file holds.

    Raises:
        ValueError: if the structure cannot be read any more.
    """
    content = content_of(structure.path)
    texts = {one: f"{min(max(value, LOWEST), HIGHEST):.2f}" for one, value in values.items()}
    if structure.format is StructureFormat.PDB:
        text = _pdb_copy(content.decode(), texts)
    else:
        text = _mmcif_copy(structure.path, content, texts)
    write_whole(path, text)
    return Copied(path, len(values), tuple(dict.fromkeys(one.chain for one in values)))


def _pdb_copy(text: str, values: Mapping[Residue, str]) -> str:
    """Return the text of a PDB file with other B-factors."""
    other = f"{OTHER_VALUE:.2f}"
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if not line.startswith(("ATOM  ", "HETATM")):
            continue
        end = "\r" if line.endswith("\r") else ""
        padded = line.removesuffix("\r").ljust(_B_FACTOR.stop)
        number = _decimal(padded[_NUMBER].strip()) + padded[_INSERTION].strip()
        value = values.get(Residue(padded[_CHAIN].strip(), number), other)
        lines[place] = f"{padded[: _B_FACTOR.start]}{value:>6}{padded[_B_FACTOR.stop :]}{end}"
    return "\n".join(lines)


def _decimal(number: str) -> str:
    """Return the number of a residue, which is in base 36 above 9,999, in decimals."""
    if _HYBRID_36.fullmatch(number):
        return str(int(number, 36) - _FIRST_HYBRID_36 + _DECIMALS)
    return number


def _mmcif_copy(path: Path, content: bytes, values: Mapping[Residue, str]) -> str:
    """Return the text of an mmCIF file with other B-factors."""
    cif = gemmi_of(path).cif
    document = cif.read_string(content)
    block = block_with_atoms(document)
    if block is None:
        raise ValueError(f"{path} changed while it was read; run the command again")
    prefix = "_atom_site."
    loop = block.find_loop(f"{prefix}Cartn_x").get_loop()
    tags = [tag.removeprefix(prefix) for tag in loop.tags]
    if "B_iso_or_equiv" not in tags:
        loop.add_columns([f"{prefix}B_iso_or_equiv"], "?")
    # gemmi takes the author's names, and the others of a file without them.
    chain_tag = "auth_asym_id" if "auth_asym_id" in tags else "label_asym_id"
    number_tag = "auth_seq_id" if "auth_seq_id" in tags else "label_seq_id"
    has_insertions = "pdbx_PDB_ins_code" in tags
    wanted = [chain_tag, number_tag, "B_iso_or_equiv"]
    table = block.find(prefix, [*wanted, "pdbx_PDB_ins_code"] if has_insertions else wanted)
    other = f"{OTHER_VALUE:.2f}"
    for row in table:
        insertion = cif.as_string(row[3]) if has_insertions else ""
        residue = Residue(cif.as_string(row[0]), cif.as_string(row[1]) + insertion)
        row[2] = values.get(residue, other)
    options = cif.WriteOptions()
    options.align_loops = ALIGNED_CHARACTERS
    options.align_pairs = ALIGNED_CHARACTERS
    text: str = document.as_string(options)
    return text
