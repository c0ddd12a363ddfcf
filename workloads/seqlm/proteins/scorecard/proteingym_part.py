"""ProteinGym's assays as a part of the scorecard."""

import hashlib
import json
from pathlib import Path

from seqlm.proteins.inference.job import Command, await_all
from seqlm.proteins.reading.counts import Counts

from .neighbours import NAME
from .part import Part
from .prepared_data import PreparedData
from .proteingym import (
    BASELINE,
    ONE_ASSAY,
    Benchmark,
    Published,
    averages,
    published,
    result_file,
    score_assays,
)
from .row import Comparison, Row


class ProteinGym(Part):
    """Zero-shot scores of the substitution assays.

    Args:
        prepared: prepared proteins, which give the baseline.
        benchmark: assays.
        folder: folder for the results of single assays.
    """

    name = "ProteinGym"
    is_shared = True

    def __init__(self, prepared: PreparedData, benchmark: Benchmark, folder: Path) -> None:
        super().__init__(prepared)
        self._benchmark = benchmark
        self._folder = folder

    def rows(self, command: Command) -> list[Row]:
        """Return the rows of means and assays; every process scores a share of the assays."""
        benchmark = self._benchmark
        here = command.here
        settings = {**command.settings, "baseline": NAME}
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()
        score_assays(
            benchmark,
            command.engine,
            self.prepared.neighbours,
            self._folder,
            key,
            here.rank,
            here.world_size,
        )
        if not here.is_first:
            return []
        files = {assay.name: result_file(self._folder, assay, key) for assay in benchmark.assays}
        await_all(files.values())
        found = {name: json.loads(file.read_text()) for name, file in files.items()}
        return [*self._means(command, found), *self._assays(command, found)]

    def _means(self, command: Command, found: dict[str, dict[str, float]]) -> list[Row]:
        correlations = {name: one["spearman"] for name, one in found.items()}
        baselines = {name: one[BASELINE] for name, one in found.items()}
        of_baseline = averages(self._benchmark, baselines)
        release = self._benchmark.release or "part of a release"
        rows = []
        for kind, mean in averages(self._benchmark, correlations).items():
            value = self.published(command).value if kind == "all" else None
            rows.append(
                Row(
                    name=f"ProteinGym, {kind}: Spearman",
                    value=mean,
                    data=f"{release}: {len(found)} assays",
                    protocol="masked marginals, mean by protein, then type, then over types",
                    compared=_compared(of_baseline[kind]),
                    published=value,
                )
            )
        return rows

    def _assays(self, command: Command, found: dict[str, dict[str, float]]) -> list[Row]:
        rows = []
        for name, one in found.items():
            value = self.published(command, name).value if name == ONE_ASSAY else None
            rows.append(
                Row(
                    name=f"ProteinGym, {name}",
                    value=one["spearman"],
                    data=f"{one['variants']:,} variants",
                    protocol="masked marginals",
                    compared=_compared(one[BASELINE]),
                    published=value,
                )
            )
        return rows

    def published(self, command: Command, assay: str | None = None) -> Published:
        """Return the published score of a model that can be compared, or the reason why it is missing.

        Args:
            command: command with the model.
            assay: name of one assay; None for the mean over all.
        """
        longest = self.prepared.config.model.max_residues
        return published(command.model_name, self._benchmark.release, longest, assay)

    def counts(self) -> list[Counts]:
        """Return the number of assays."""
        return [Counts("assays", len(self._benchmark.assays))]


def _compared(baseline: float) -> Comparison:
    return Comparison(chance=0.0, chance_of="random order", baseline=baseline, baseline_of=NAME)
