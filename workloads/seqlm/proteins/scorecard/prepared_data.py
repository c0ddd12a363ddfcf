"""Prepared proteins of the run file, and what their counts say about residues."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from seqlm.proteins.model.protein_packs import ProteinSplit
from seqlm.runs.run_file import RunFile
from seqlm.training.data.manifest import Manifest

from .neighbours import MOST_PROTEINS, NAME, Floats, Neighbours, Tokens, drawn_proteins
from .row import Comparison

PSEUDO_PERPLEXITY_PROTEINS = 4
"""Default number of proteins for the pseudo-perplexity."""
COMPOSITION = "composition of the split"


def digest(*facts: object) -> str:
    """Return the SHA-256 of the data and settings that a score depends on."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


class PreparedData:
    """Prepared proteins of the run file.

    Args:
        config: run file.
    """

    def __init__(self, config: RunFile) -> None:
        self.config = config
        self.split = ProteinSplit(config.data.path, config.evaluate.split)
        self.pseudo_proteins = (
            config.evaluate.pseudo_perplexity_proteins or PSEUDO_PERPLEXITY_PROTEINS
        )

    @cached_property
    def neighbours(self) -> Neighbours:
        """Counts of the training split."""
        return Neighbours(
            drawn_proteins(ProteinSplit(self.config.data.path, "train"), MOST_PROTEINS)
        )

    @cached_property
    def sha256(self) -> str:
        """Hash of the sources and of the settings of the preparation."""
        manifest = Manifest.load(self.config.data.path)
        sources = sorted(source.sha256 for source in manifest.sources)
        return digest(sources, dataclasses.asdict(manifest.settings), self.config.evaluate.split)

    def compared(self, proteins: Sequence[Tokens], *, by_protein: bool) -> Comparison:
        """Return the perplexities of composition and neighbours.

        Args:
            proteins: scored proteins.
            by_protein: whether the perplexity is the mean of those of the proteins, not of all residues.
        """
        counts = np.maximum(self.split.token_counts(), 1)
        composition = -np.log(counts / counts.sum())
        return Comparison(
            chance=_perplexity([composition[tokens] for tokens in proteins], by_protein),
            chance_of=COMPOSITION,
            baseline=_perplexity(
                [self.neighbours.losses(tokens) for tokens in proteins], by_protein
            ),
            baseline_of=NAME,
        )


def _perplexity(losses: Sequence[Floats], by_protein: bool) -> float:
    if by_protein:
        return float(np.mean([np.exp(one.mean()) for one in losses]))
    return float(np.exp(np.concatenate(losses).mean()))
