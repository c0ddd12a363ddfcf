"""Columns that describe the proteins of a result, before those of the answers."""

from collections.abc import Sequence

import pyarrow as pa

from seqlm.proteins.reading.chains import rows_of_chains

from .records import Protein

CHAINS = "chains"
"""Column with the chains of a record, and with the numbers of their residues: ``H 1-120, L 121-227``."""


def described_proteins(proteins: Sequence[Protein], *, has_chains: bool) -> dict[str, pa.Array]:
    """Return the columns id and length and, if chains are read as one protein, those of each record.

    Args:
        proteins: proteins of a part.
        has_chains: whether records with several chains are read as one protein.
    """
    columns = {
        "id": pa.array([protein.id for protein in proteins], pa.string()),
        "length": pa.array([protein.num_residues for protein in proteins], pa.int32()),
    }
    if has_chains:
        columns[CHAINS] = pa.array([chains_of(protein) for protein in proteins], pa.string())
    return columns


def chains_of(protein: Protein) -> str:
    """Return the chains of a protein with the numbers of their residues; empty for one chain."""
    rows = rows_of_chains(protein.chains)
    return ", ".join(f"{name} {first}-{last}" for name, first, last in rows)
