"""Small structures that are made up for tests: a text with each oddity, and chains on a helix."""

from __future__ import annotations

import math
from collections.abc import Sequence

ODD = """\
HEADER    MADE UP                                 01-JAN-26   9XYZ
SEQRES   1 A    9  ACE ALA MSE GLY SER ZZZ TRP LYS NH2
SEQRES   1 B    3   DA  DG  DC
MODEL        1
ATOM      1  CA  ALA A   1       1.000   0.000   0.000  1.00 10.00           C
ATOM      2  CB  ALA A   1       2.000   0.000   0.000  1.00 10.00           C
HETATM    3  CA  MSE A   2       4.000   0.000   0.000  1.00 10.00           C
HETATM    4  CB  MSE A   2       5.000   0.000   0.000  1.00 10.00           C
ATOM      5  CA ATRP A  10A      9.000   0.000   0.000  0.50 10.00           C
ATOM      6  CA BTRP A  10A      9.500   0.000   0.000  0.50 10.00           C
ATOM      7  CB ATRP A  10A      9.900   0.000   0.000  0.50 10.00           C
ATOM      8  CB BTRP A  10A     90.000   0.000   0.000  0.50 10.00           C
ATOM      9  CA  LYS A  11      13.000   0.000   0.000  1.00 10.00           C
TER
ATOM     10  P    DA B   1       1.000   9.000   0.000  1.00 10.00           P
ATOM     11  P    DG B   2       1.000  12.000   0.000  1.00 10.00           P
TER
HETATM   12  O   HOH A 101       1.000   0.000   9.000  1.00 10.00           O
HETATM   13  O   HOH A 102       1.000   0.000  12.000  1.00 10.00           O
HETATM   14 FE   HEM A 103       1.000   0.000  15.000  1.00 10.00          FE
ENDMDL
MODEL        2
ATOM      1  CA  ALA A   1       8.000   0.000   0.000  1.00 10.00           C
ENDMDL
END
"""
"""PDB file with modified, unknown and unresolved residues, caps, an insertion code, alternative locations,
DNA, waters, a ligand and two models."""

LETTERS = "ARNDCQEGHILKMFPSTWYV"
NAMES = "ALA ARG ASN ASP CYS GLN GLU GLY HIS ILE LEU LYS MET PHE PRO SER THR TRP TYR VAL"
THREE_LETTERS = dict(zip(LETTERS, NAMES.split(), strict=True))
RESIDUES_IN_LINE = 13
DEGREES = 100.0
"""Rotation of an alpha helix per residue, in degrees."""
RISE = 1.5
"""Rise of an alpha helix per residue, in Angstrom."""
RADIUS = 3.3
"""Distance of C-beta from the axis, in Angstrom."""


def helix(
    chains: dict[str, str],
    missing: Sequence[int] = (),
    *,
    with_sequence: bool = True,
    first_number: int = 1,
    rise: float = RISE,
) -> str:
    """Return a PDB file of helices with C-alpha and C-beta.

    Args:
        chains: sequences by the names of chains.
        missing: positions without coordinates, from 0.
        with_sequence: whether it has SEQRES.
        first_number: number of the first residue.
        rise: Angstrom from one residue to the next; few make residues far apart in the chain neighbours.
    """
    lines = ["HEADER    MADE UP                                 01-JAN-26   9HLX"]
    for name, sequence in chains.items() if with_sequence else ():
        names = [THREE_LETTERS[letter] for letter in sequence]
        for number, start in enumerate(range(0, len(names), RESIDUES_IN_LINE), start=1):
            part = " ".join(names[start : start + RESIDUES_IN_LINE])
            lines.append(f"SEQRES {number:3d} {name} {len(names):4d}  {part}")
    serial = 0
    for shift, (name, sequence) in enumerate(chains.items()):
        for place, letter in enumerate(sequence):
            if place in missing:
                continue
            for atom, radius in (("CA", RADIUS - 1.0), ("CB", RADIUS)):
                if letter == "G" and atom == "CB":
                    continue
                serial += 1
                angle = math.radians(DEGREES * place)
                x = radius * math.cos(angle) + 40 * shift
                y = radius * math.sin(angle)
                lines.append(
                    f"ATOM  {serial:5d}  {atom:3s} {THREE_LETTERS[letter]} {name}"
                    f"{place + first_number:4d}    {x:8.3f}{y:8.3f}{rise * place:8.3f}  1.00 20.00"
                    "           C"
                )
        lines.append("TER")
    return "\n".join([*lines, "END", ""])


def as_mmcif(text: str) -> str:
    """Return a PDB file as gemmi writes it in mmCIF."""
    import gemmi

    structure = gemmi.read_pdb_string(text)
    structure.merge_chain_parts()
    structure.setup_entities()
    structure.assign_label_seq_id()
    return structure.make_mmcif_document().as_string()
