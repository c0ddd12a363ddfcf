"""Baseline without a language model: each residue from the two beside it, by counts of three in a row."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import VOCAB_SIZE
from seqlm.proteins.mutations.edits import Variant
from seqlm.training.records import RecordSplit
from seqlm.training.scoring import EVALUATION_SEED

Tokens = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
PRIOR = 100.0
"""Number of residues that the composition counts as, between each pair of neighbours."""
END = VOCAB_SIZE
"""Neighbour of the first and the last residue."""
MOST_PROTEINS = 10_000
"""Largest number of proteins that are counted or scored; of more, a part is drawn with a fixed seed."""
NAME = "neighbours: counts of three residues in a row"


class Neighbours:
    """Probabilities of a residue, given the one before and the one after it.

    Args:
        proteins: token ids of the proteins that are counted.
    """

    def __init__(self, proteins: Iterable[Tokens]) -> None:
        size = VOCAB_SIZE + 1
        counts = np.zeros(size**3)
        for tokens in proteins:
            left, right = _beside(tokens)
            np.add.at(counts, (left * size + tokens) * size + right, 1)
        counts = counts.reshape(size, size, size)[:, :VOCAB_SIZE, :]
        composition = (
            counts.sum(axis=(0, 2)) + 1
        )  # a residue that was never counted is possible, too
        shares = PRIOR * composition / composition.sum()
        totals = counts.sum(axis=1, keepdims=True) + PRIOR
        self._logs = np.log((counts + shares[None, :, None]) / totals)

    def log_probabilities(self, tokens: Tokens) -> Floats:
        """Return the log probability of each token at each place of a protein, (L, V)."""
        left, right = _beside(tokens)
        return np.asarray(self._logs[left, :, right])

    def losses(self, tokens: Tokens) -> Floats:
        """Return minus the log probability of each residue of a protein, (L,)."""
        return -self.log_probabilities(tokens)[np.arange(len(tokens)), tokens]

    def scores(self, tokens: Tokens, variants: Sequence[Variant]) -> list[float]:
        """Return log p(mutant) - log p(wild type) of variants, summed over their substitutions."""
        logs = self.log_probabilities(tokens)
        return [
            float(sum(logs[one.place, one.mutant] - logs[one.place, one.wild] for one in each))
            for each in (variant.substitutions for variant in variants)
        ]


def _beside(tokens: Tokens) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the tokens before and after each one."""
    padded = np.pad(tokens.astype(np.int64), 1, constant_values=END)
    return padded[:-2], padded[2:]


def drawn_proteins(split: RecordSplit, most: int) -> list[Tokens]:
    """Return the first proteins of a split, at most ``most``, drawn as evaluations draw them."""
    places, _ = split.draw(0, min(most, split.num_units), EVALUATION_SEED, 0)
    return [split.token_ids(place) for place in places]
