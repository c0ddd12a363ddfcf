"""Mean effects of positions in the B-factors of a copy of a structure, which viewers show as colours."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from seqlm.proteins.alphabet import STANDARD_RESIDUES
from seqlm.proteins.structures.b_factors import Copied, Residue, values_of, write_copy
from seqlm.proteins.structures.chains import Structure, StructureChain

from .single_mutants import Mutants, proteins_of


def write_effects(table: Path, structure: Structure, first_position: int) -> Copied:
    """Write ``<name>.structure.pdb`` or ``.cif``, a copy with the mean effect of each position.

    Every chain with the sequence of a protein gets its effects.

    Args:
        table: scores of all single mutants.
        structure: structure.
        first_position: number of each protein's first residue in the table.
    """
    values: dict[Residue, float] = {}
    left = list(structure.chains)
    for mutants in proteins_of(table, first_position):
        same = [chain for chain in left if _is_same(mutants, chain)]
        if not same:
            continue
        left = [chain for chain in left if chain not in same]
        effects = mean_effects(mutants)
        for chain in same:
            values |= values_of(chain, effects)
        if not left:
            break
    path = table.with_suffix(f".structure{structure.format.value}")
    return write_copy(structure, path, values)


def mean_effects(mutants: Mutants) -> dict[int, float]:
    """Return the mean score of the mutants of each position, from 0."""
    scores: dict[int, list[float]] = defaultdict(list)
    for (place, _), score in mutants.scores.items():
        scores[place - mutants.first_position].append(score)
    return {place: float(np.mean(values)) for place, values in scores.items()}


def _is_same(mutants: Mutants, chain: StructureChain) -> bool:
    """Return whether a chain has the sequence of a protein. Its scores show the standard residues only."""
    scored = {
        place: letter
        for place, letter in enumerate(chain.sequence, start=mutants.first_position)
        if letter in STANDARD_RESIDUES
    }
    return scored == mutants.wild
