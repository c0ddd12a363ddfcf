"""Localization of the scorecard: probes for the compartments of bundled proteins."""

import csv
import gzip
from functools import cached_property
from typing import Any

import numpy as np

from seqlm.proteins.alphabet import encode
from seqlm.proteins.finetune.baselines import kmer_counts
from seqlm.proteins.finetune.labels import Floats, LabelSchema
from seqlm.proteins.finetune.prepare import TABLES
from seqlm.proteins.finetune.probes import Examples, fit_probe
from seqlm.proteins.finetune.scores import scores
from seqlm.proteins.inference.engine import EMBEDDING
from seqlm.proteins.inference.job import Command
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.training.checksums import digest_of

from .part import SEED, Part
from .prepared_data import PreparedData, digest
from .row import Comparison, Row

LOCALIZATION_PROTEINS = 500
"""Number of bundled proteins for the localization."""
NOT_COMPARTMENTS = ("ACC", "Partition", "Membrane", "Sequence")
"""Columns of the bundled table that are no compartments."""
FOLDS = {"train": ("0", "1", "2"), "validation": ("3",), "test": ("4",)}
SCORES = ("jaccard", "auroc")
RAREST = 1e-3
"""Smallest share of a compartment, which keeps logits finite."""


class Localization(Part):
    """Compartments of proteins, several of which a protein may have."""

    name = "localization"

    def __init__(self, prepared: PreparedData) -> None:
        super().__init__(prepared)
        with gzip.open(TABLES.sample, "rt", newline="") as file:
            table = list(csv.DictReader(file))
        self._num_read = len(table)
        chosen = np.random.default_rng(SEED).permutation(len(table))[:LOCALIZATION_PROTEINS]
        self._table = [table[number] for number in chosen]
        compartments = [column for column in table[0] if column not in NOT_COMPARTMENTS]
        self._schema = LabelSchema("multilabel", tuple(compartments))
        self._proteins = [encode(row["Sequence"]) for row in self._table]
        self._labels = np.array(
            [[row[name] for name in self._schema.columns] for row in self._table], dtype=np.float32
        )
        fold = np.array([row["Partition"] for row in self._table])
        self._rows = {split: np.flatnonzero(np.isin(fold, folds)) for split, folds in FOLDS.items()}

    def _probed(self, features: Any) -> dict[str, float]:
        """Return the scores of a probe on features of all proteins."""
        examples = {
            split: Examples(features[rows], self._labels[rows])
            for split, rows in self._rows.items()
        }
        probe = fit_probe(self._schema, examples["train"], examples["validation"])
        return self._scores(probe.outputs(examples["test"].features))

    def _scores(self, outputs: Floats) -> dict[str, float]:
        return scores(self._schema, self._labels[self._rows["test"]], outputs)

    @cached_property
    def _by_frequency(self) -> dict[str, float]:
        """Scores of the frequencies of the compartments, which are the same for every protein."""
        shares = self._labels[self._rows["train"]].mean(axis=0)
        shares = np.clip(shares, RAREST, 1 - RAREST)
        logits = np.log(shares / (1 - shares))
        return self._scores(np.tile(logits, (len(self._rows["test"]), 1)))

    @cached_property
    def _by_kmers(self) -> dict[str, float]:
        train = [self._proteins[row] for row in self._rows["train"]]
        _, counted = kmer_counts([train, self._proteins])
        return self._probed(counted)

    def rows(self, command: Command) -> list[Row]:
        """Return a row for each score."""
        found = self._probed(np.stack(command.engine.run(self._proteins, EMBEDDING)))
        compartments = len(self._schema.columns)
        data = (
            f"{len(self._rows['test'])} of {len(self._table)} bundled proteins, {compartments} "
            "compartments"
        )
        return [
            Row(
                name=f"localization: {name}",
                value=found[name],
                data=data,
                protocol="frozen probe on mean embeddings, split by cluster",
                compared=Comparison(
                    chance=self._by_frequency[name],
                    chance_of="frequencies of the compartments",
                    baseline=self._by_kmers[name],
                    baseline_of="k-mers: counts of three residues, with the same probe",
                ),
                data_sha256=digest(digest_of(TABLES.sample, "sha256"), len(self._table), SEED),
            )
            for name in SCORES
        ]

    def counts(self) -> list[Counts]:
        """Return the numbers of bundled proteins that are used, and that are not drawn."""
        counts = Counts("bundled proteins", len(self._table), is_listed=False)
        counts.left_out[Kind.NOT_DRAWN] += self._num_read - len(self._table)
        return [counts]
