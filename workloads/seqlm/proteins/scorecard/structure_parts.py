"""Contacts and secondary structure of the scorecard, on bundled chains of the PDB."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import VOCAB_SIZE
from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.contacts.head import (
    RANGES,
    SHARES,
    SHORTEST,
    STRUCTURES_FILE,
    Chain,
    ContactHead,
    Pairs,
    chains,
    precision,
)
from seqlm.proteins.finetune.baselines import WINDOW, windows
from seqlm.proteins.finetune.labels import LabelSchema
from seqlm.proteins.finetune.probes import Examples, fit_probe
from seqlm.proteins.finetune.scores import scores
from seqlm.proteins.inference.engine import RESIDUE_EMBEDDINGS
from seqlm.proteins.inference.job import Command
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.training.checksums import digest_of

from .part import Part
from .prepared_data import PreparedData, digest
from .row import Comparison, Row

FIT_CHAINS = 15
"""Number of bundled chains that the probe of the secondary structure is fitted on. The others choose its
penalty."""
PAIRS = "one-hot: the two residues of a pair, and their distance along the chain"
STRUCTURE = LabelSchema("residue", ("structure",), ("H", "E", "C"))
Matrix = npt.NDArray[np.float32]
Precisions = Mapping[tuple[str, str], float]
"""Mean precision over chains by range and share."""


class Contacts(Part):
    """Precision of predicted contacts."""

    name = "contacts"

    def __init__(self, prepared: PreparedData) -> None:
        super().__init__(prepared)
        self._chains = chains("score")
        self._sha256 = digest(digest_of(STRUCTURES_FILE, "sha256"), len(self._chains))

    @cached_property
    def _by_residues(self) -> Precisions:
        """Precisions of a regression that sees the residues of each pair alone."""
        from sklearn.linear_model import LogisticRegression

        features = []
        labels = []
        for chain in chains("fit"):
            pairs = chain.pairs(SHORTEST)
            features.append(_pair_features(chain, pairs))
            labels.append(chain.contacts[pairs.i, pairs.j])
        regression = LogisticRegression(max_iter=200)
        regression.fit(np.concatenate(features), np.concatenate(labels))

        def predicted(chain: Chain) -> Matrix:
            pairs = chain.pairs(SHORTEST)
            length = len(chain.sequence)
            found = np.zeros((length, length), dtype=np.float32)
            found[pairs.i, pairs.j] = regression.decision_function(_pair_features(chain, pairs))
            return found

        return self._precisions(predicted)

    def _precisions(self, predicted: Callable[[Chain], Matrix]) -> Precisions:
        found: dict[tuple[str, str], list[float]] = {key: [] for key in _keys()}
        for chain in self._chains:
            values = predicted(chain)
            for kind, name in _keys():
                found[kind, name].append(precision(chain, values, kind, SHARES[name]))
        return {key: float(np.mean(values)) for key, values in found.items()}

    def _chance(self, kind: str) -> float:
        """Return the precision of random pairs of a range, which is the share of contacts among them."""
        shares = []
        for chain in self._chains:
            pairs = chain.pairs(*RANGES[kind])
            shares.append(chain.contacts[pairs.i, pairs.j].mean())
        return float(np.mean(shares))

    def rows(self, command: Command) -> list[Row]:
        """Return a row for each range and share."""
        head, source = _head_of(command)
        found = self._precisions(lambda chain: head.probabilities(command.engine, chain.tokens))
        rows = []
        for kind, name in _keys():
            low, high = RANGES[kind]
            distances = f"|i - j| >= {low}" if kind == "long" else f"|i - j| {low} to {high}"
            rows.append(
                Row(
                    name=f"contacts, {kind} range: {name}",
                    value=found[kind, name],
                    data=f"{len(self._chains)} bundled chains of the PDB",
                    protocol=f"{source}; {distances}",
                    compared=Comparison(
                        chance=self._chance(kind),
                        chance_of="random pairs",
                        baseline=self._by_residues[kind, name],
                        baseline_of=PAIRS,
                    ),
                    data_sha256=self._sha256,
                )
            )
        return rows

    def counts(self) -> list[Counts]:
        """Return the number of chains."""
        return [Counts("chains", len(self._chains))]


def _keys() -> Iterator[tuple[str, str]]:
    """Yield each range with each share."""
    for kind in RANGES:
        for name in SHARES:
            yield kind, name


def _head_of(command: Command) -> tuple[ContactHead, str]:
    """Return the contact head of a model, and its source."""
    try:
        head = contact_head.load(command.engine.model, command.model_name)
    except ValueError:
        return contact_head.fit(command.engine, chains("fit")), "regression on 20 other chains"
    return head, "the model's own contact head"


def _pair_features(chain: Chain, pairs: Pairs) -> Matrix:
    """Return the one-hot residues of pairs and the logarithm of their distance along the chain."""
    residues = np.eye(VOCAB_SIZE, dtype=np.float32)[chain.tokens]
    distances = np.log(pairs.j - pairs.i).astype(np.float32)
    return np.concatenate([residues[pairs.i], residues[pairs.j], distances[:, None]], axis=1)


class SecondaryStructure(Part):
    """Accuracy of a probe for helix, strand and other."""

    name = "secondary structure"

    def __init__(self, prepared: PreparedData) -> None:
        super().__init__(prepared)
        self._fit = chains("fit")
        self._score = chains("score")
        self._labels = {chain.id: _labels(chain) for chain in [*self._fit, *self._score]}

    def _examples(self, of: list[Chain], features: list[Matrix]) -> Examples:
        """Return the residues with a known structure."""
        labels = np.concatenate([self._labels[chain.id] for chain in of])
        known = np.flatnonzero(np.isfinite(labels))
        return Examples(np.concatenate(features)[known], labels[known, None])

    def _accuracy(self, embed: Callable[[list[Chain]], list[Matrix]]) -> float:
        """Return the accuracy of a probe on features of residues."""
        fit = self._fit[:FIT_CHAINS]
        choose = self._fit[FIT_CHAINS:]
        probe = fit_probe(
            STRUCTURE, self._examples(fit, embed(fit)), self._examples(choose, embed(choose))
        )
        test = self._examples(self._score, embed(self._score))
        return scores(STRUCTURE, test.labels, probe.outputs(test.features))["accuracy"]

    @cached_property
    def _compared(self) -> Comparison:
        known = np.concatenate([self._labels[chain.id] for chain in self._fit])
        values, counts = np.unique(known[np.isfinite(known)], return_counts=True)
        frequent = values[counts.argmax()]
        scored = np.concatenate([self._labels[chain.id] for chain in self._score])
        scored = scored[np.isfinite(scored)]
        return Comparison(
            chance=float((scored == frequent).mean()),
            chance_of=f"the most frequent state ({STRUCTURE.classes[int(frequent)]})",
            baseline=self._accuracy(lambda of: windows([chain.tokens for chain in of])),
            baseline_of=f"one-hot: {WINDOW} residues on either side, with the same probe",
        )

    def rows(self, command: Command) -> list[Row]:
        """Return the row."""

        def embed(of: list[Chain]) -> list[Matrix]:
            return command.engine.run([chain.tokens for chain in of], RESIDUE_EMBEDDINGS)

        [counts] = self.counts()
        return [
            Row(
                name="secondary structure: accuracy (Q3)",
                value=self._accuracy(embed),
                data=(
                    f"{counts.used:,} residues of {len(self._score)} bundled chains (DSSP, 3 states)"
                ),
                protocol=f"frozen probe on residues, {len(self._fit)} other chains",
                compared=self._compared,
                data_sha256=digest(
                    digest_of(STRUCTURES_FILE, "sha256"), len(self._fit), len(self._score)
                ),
            )
        ]

    def counts(self) -> list[Counts]:
        """Return the scored residues, without those of an unknown structure."""
        counts = Counts("residues with a structure", is_listed=False)
        for chain in self._score:
            known = int(np.isfinite(self._labels[chain.id]).sum())
            counts.used += known
            counts.left_out[Kind.NO_LABEL] += len(chain.sequence) - known
        return [counts]


def _labels(chain: Chain) -> Matrix:
    """Return the class of each residue; NaN if its structure is unknown."""
    classes = STRUCTURE.classes
    found = [classes.index(one) if one in classes else math.nan for one in chain.structure]
    return np.array(found, dtype=np.float32)
