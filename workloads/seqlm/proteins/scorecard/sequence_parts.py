"""Perplexity, pseudo-perplexity and the synthetic assay of the scorecard."""

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from seqlm.proteins.contacts.head import STRUCTURES_FILE, chains
from seqlm.proteins.inference.engine_probabilities import score_variants
from seqlm.proteins.inference.job import Command
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.model.packed_model import MaskedLanguageModel
from seqlm.proteins.mutations.saturation import all_single_mutants
from seqlm.proteins.pretraining.evaluation import pseudo_perplexity, score_model, split_counts
from seqlm.proteins.reading.counts import Counts
from seqlm.training.checksums import digest_of
from seqlm.training.packing import PackShape

from .neighbours import MOST_PROTEINS, NAME, drawn_proteins
from .part import SEED, Part
from .prepared_data import PreparedData, digest
from .row import Comparison, Row

PSEUDO_PERPLEXITY_RESIDUES = 256
"""Largest number of residues of each of these proteins."""
HYDROPATHY = {
    "A": 1.8,
    "C": 2.5,
    "D": -3.5,
    "E": -3.5,
    "F": 2.8,
    "G": -0.4,
    "H": -3.2,
    "I": 4.5,
    "K": -3.9,
    "L": 3.8,
    "M": 1.9,
    "N": -3.5,
    "P": -1.6,
    "Q": -3.5,
    "R": -4.5,
    "S": -0.8,
    "T": -0.7,
    "V": 4.2,
    "W": -0.9,
    "Y": -1.3,
}
"""Kyte and Doolittle 1982, for the synthetic assay."""


class Perplexity(Part):
    """Perplexity and pseudo-perplexity on the prepared data of the run file."""

    name = "perplexity"
    is_shared = True

    @cached_property
    def _compared(self) -> Comparison:
        proteins = drawn_proteins(self.prepared.split, MOST_PROTEINS)
        return self.prepared.compared(proteins, by_protein=False)

    @cached_property
    def _compared_alone(self) -> Comparison:
        proteins = drawn_proteins(self.prepared.split, self.prepared.pseudo_proteins)
        cropped = [tokens[:PSEUDO_PERPLEXITY_RESIDUES] for tokens in proteins]
        return self.prepared.compared(cropped, by_protein=True)

    def rows(self, command: Command) -> list[Row]:
        """Return both rows, which all processes compute."""
        config = self.prepared.config
        split = self.prepared.split
        engine = command.engine
        inference = dataclasses.replace(config.inference, model=command.model_name)
        found: dict[str, Any] = score_model(
            dataclasses.replace(config, inference=inference), command.here
        )
        model = engine.model
        assert isinstance(model, MaskedLanguageModel)  # checked by its architectures
        pseudo = pseudo_perplexity(
            model,
            split,
            PackShape.of(split, engine.tokens_per_pack, PSEUDO_PERPLEXITY_RESIDUES),
            num_proteins=self.prepared.pseudo_proteins,
            dtype=engine.dtype,
            device=engine.device,
            kernels=config.inference.kernels,
            here=command.here,
        )
        if not command.here.is_first:
            return []
        # A whole split has the digest of versions without a bound.
        is_whole = found["proteins"] == split.num_units
        bound = [] if is_whole else [config.evaluate.packs]
        data = f"{config.data.path}, split {config.evaluate.split}"
        masked = Row(
            name="perplexity",
            value=found["perplexity"],
            data=f"{data}: {found['proteins']:,} proteins",
            protocol=f"{config.model.mask_fraction:.0%} of the residues, fixed masks",
            compared=self._compared,
            best=1.0,
            scale="log",
            data_sha256=digest(
                self.prepared.sha256,
                config.model.mask_fraction,
                config.model.max_residues,
                config.train.tokens_per_pack,
                *bound,
            ),
        )
        number = self.prepared.pseudo_proteins
        alone = Row(
            name="pseudo-perplexity",
            value=pseudo,
            data=(
                f"{data}: {number} proteins drawn with a fixed seed, {PSEUDO_PERPLEXITY_RESIDUES} "
                "residues of each"
            ),
            protocol="each residue masked alone",
            compared=self._compared_alone,
            best=1.0,
            scale="log",
            data_sha256=digest(self.prepared.sha256, number, PSEUDO_PERPLEXITY_RESIDUES),
        )
        return [masked, alone]

    def counts(self) -> list[Counts]:
        """Return the proteins and residues of the split."""
        config = self.prepared.config
        return split_counts(config, config.evaluate.split)


class SyntheticAssay(Part):
    """Effects of mutations against synthetic numbers."""

    name = "variant effects"

    def __init__(self, prepared: PreparedData) -> None:
        super().__init__(prepared)
        self._chain = chains("score")[0]
        self._variants = all_single_mutants(Protein(self._chain.id, self._chain.tokens, ""))
        noise = np.random.default_rng(SEED).normal(size=len(self._variants))
        changes = [
            abs(HYDROPATHY[one.name[-1]] - HYDROPATHY[one.name[0]]) for one in self._variants
        ]
        self._measured = noise - np.array(changes)

    @cached_property
    def _compared(self) -> Comparison:
        scores = self.prepared.neighbours.scores(self._chain.tokens, self._variants)
        return Comparison(
            chance=0.0,
            chance_of="random order",
            baseline=self._correlation(scores),
            baseline_of=NAME,
        )

    def _correlation(self, predicted: Sequence[float]) -> float:
        from scipy.stats import spearmanr

        return float(spearmanr(predicted, self._measured).statistic)

    def rows(self, command: Command) -> list[Row]:
        """Return the row."""
        predicted = score_variants(command.engine, self._chain.tokens, self._variants)
        number = len(self._variants)
        return [
            Row(
                name="variant effects, SYNTHETIC assay: Spearman",
                value=self._correlation(predicted),
                data=f"{self._chain.id}: {number:,} single mutants, change of hydropathy and noise",
                protocol="masked marginals; tests the mechanics, says nothing about the model",
                compared=self._compared,
                data_sha256=digest(digest_of(STRUCTURES_FILE, "sha256"), SEED),
            )
        ]

    def counts(self) -> list[Counts]:
        """Return the number of mutants."""
        return [Counts("single mutants", len(self._variants))]
