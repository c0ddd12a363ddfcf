"""Zero-shot scores of ProteinGym's substitution assays (Notin et al. 2023), by masked marginals.

Each mutated position is masked alone, also in multiple mutants. A protein above ``model.max_residues`` is
read in one window around the position. (ProteinGym's own script counts 1,024 tokens for a window, which
contains CLS and EOS only at the ends of the protein. 16 of the 217 proteins are that long.)

Published scores stand beside ours only if data, release and protocol are the same.
"""

import csv
import hashlib
import io
import json
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seqlm.proteins.alphabet import encode
from seqlm.proteins.families.family import ProteinGymScores
from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.proteins.inference.engine import Engine
from seqlm.proteins.inference.engine_probabilities import score_variants
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.mutations.edits import Variant
from seqlm.proteins.mutations.fitting import parse_variant
from seqlm.training.data.transfer import SourceKind, fetch
from seqlm.training.whole_file import write_whole

from .neighbours import Neighbours

REFERENCE = "DMS_substitutions.csv"
"""File with a row for each assay."""
FILES = SourceKind("ProteinGym", (".zip", ".csv"), Path(), {})
RELEASES = {"3120c929e5b4c1723a5299d6601cd25d244c68c2125763fe6323ffea248879e6": "v1.3"}
"""Releases by the SHA-256 of the assays' names and target sequences (``fingerprint``)."""
TOLERANCE = 0.005
"""Differences between correct programs: types of numbers, windows of the longest proteins, rounding."""
PUBLISHED: Mapping[str, ProteinGymScores] = {
    hub_id: scores
    for family in MODEL_FAMILIES.values()
    for hub_id, scores in family.proteingym.items()
}
"""Published scores of all families, by hub id."""
ONE_ASSAY = "BLAT_ECOLX_Stiffler_2015"
"""Only assay with a published correlation of its own."""
PUBLISHED_RELEASE = "v1.3"
PUBLISHED_RESIDUES = 1022
"""Number of residues in a window of the published scores."""
BASELINE = "neighbours"
"""Name of the baseline's correlation in a result."""
KEY_CHARACTERS = 16
"""Number of characters of the key in the name of a result."""


class Published(NamedTuple):
    """Published score that a score can be compared with."""

    value: float | None = None
    reason: str = ""
    """Reason why a published score is missing."""


class _File(NamedTuple):
    """CSV file of the benchmark."""

    source: Path
    member: str
    """Name in ``source``, which is a .zip; empty if ``source`` is the CSV itself."""


@dataclass(frozen=True)
class Assay:
    """One deep mutational scan."""

    name: str
    protein: str
    """UniProt id."""
    kind: str
    """Coarse type of selection, such as ``Stability``."""
    target: str
    """Wild type."""
    source: Path
    member: str
    """File in ``source``, which is a .zip; empty if ``source`` is the assay's file."""

    def measured(self) -> list[tuple[Variant, float]]:
        """Return the variants with their measured scores.

        Raises:
            ValueError: if the file lacks a column, or a variant does not fit the target.
        """
        protein = Protein(self.name, encode(self.target), str(self.source))
        found = []
        # Line 1 has the names of the columns.
        for line, row in enumerate(_rows(_File(self.source, self.member)), start=2):
            try:
                found.append((parse_variant(row["mutant"], protein), float(row["DMS_score"])))
            except (KeyError, ValueError) as error:
                raise ValueError(f"{self.source} {self.member}:{line}: {error}") from None
        return found


@dataclass(frozen=True)
class Benchmark:
    assays: tuple[Assay, ...]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the assays' names and target sequences."""
        lines = sorted(f"{assay.name} {assay.target}" for assay in self.assays)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def release(self) -> str | None:
        """Release such as ``v1.3``; None if the assays are not those of a complete release."""
        return RELEASES.get(self.fingerprint)


def read_benchmark(locations: Sequence[str], downloads: Path) -> Benchmark:
    """Find the reference file and the assays that are there.

    Args:
        locations: folders, .zip and .csv files, or their addresses, with the reference file and the assays.
        downloads: folder for downloaded files.

    Raises:
        ValueError: if there is no reference file, or no assay of it.
    """
    files: dict[str, _File] = {}
    for location in locations:
        for path in fetch(location, downloads, FILES):
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive:
                    files |= {Path(name).name: _File(path, name) for name in archive.namelist()}
            else:
                files[path.name] = _File(path, "")
    if REFERENCE not in files:
        raise ValueError(
            f"scorecard.proteingym: no {REFERENCE} in {', '.join(locations)}; add it to the list"
        )
    assays = []
    for row in _rows(files[REFERENCE]):
        file = files.get(row["DMS_filename"])
        if file is not None:
            assay = Assay(
                name=row["DMS_id"],
                protein=row["UniProt_ID"],
                kind=row["coarse_selection_type"],
                target=row["target_seq"],
                source=file.source,
                member=file.member,
            )
            assays.append(assay)
    if not assays:
        raise ValueError(f"scorecard.proteingym: no assay of {REFERENCE} in {', '.join(locations)}")
    return Benchmark(tuple(assays))


def score_assays(
    benchmark: Benchmark,
    engine: Engine,
    neighbours: Neighbours,
    folder: Path,
    key: str,
    rank: int,
    world_size: int,
) -> None:
    """Score this process's share of the assays, without those that an earlier start has scored.

    Args:
        benchmark: assays.
        engine: engine with a masked language model.
        neighbours: baseline, which is scored as well.
        folder: folder for the results, with a file for each assay.
        key: hash of everything besides the assay that its result depends on.
        rank: number of this process.
        world_size: number of processes.
    """
    from scipy.stats import spearmanr

    folder.mkdir(parents=True, exist_ok=True)
    for number, assay in enumerate(benchmark.assays):
        file = result_file(folder, assay, key)
        if number % world_size != rank or file.exists():
            continue
        scored = assay.measured()
        variants = [variant for variant, _ in scored]
        measured = [score for _, score in scored]
        target = encode(assay.target)
        predicted = score_variants(engine, target, variants)
        correlation = float(spearmanr(predicted, measured).statistic)
        baseline = neighbours.scores(target, variants)
        result = {
            "spearman": correlation,
            BASELINE: float(spearmanr(baseline, measured).statistic),
            "variants": len(variants),
        }
        write_whole(file, json.dumps(result) + "\n")
        progress = f"{number + 1} of {len(benchmark.assays)}"
        print(f"{progress}: {assay.name} {correlation:.3f} ({len(variants):,} variants)")


def result_file(folder: Path, assay: Assay, key: str) -> Path:
    """Return the file of an assay's result."""
    return folder / f"{assay.name}-{key[:KEY_CHARACTERS]}.json"


def averages(benchmark: Benchmark, correlations: Mapping[str, float]) -> dict[str, float]:
    """Return the mean correlation of each type of selection, and as ``all`` the mean over the types.

    The correlations are first averaged over the assays of each protein and type.
    """
    proteins: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for assay in benchmark.assays:
        proteins[assay.kind][assay.protein].append(correlations[assay.name])
    means = {}
    for kind, by_protein in sorted(proteins.items()):
        of_proteins = [np.mean(values) for values in by_protein.values()]
        means[kind] = float(np.mean(of_proteins))
    return {**means, "all": float(np.mean(list(means.values())))}


def published(
    model: str, release: str | None, max_residues: int, assay: str | None = None
) -> Published:
    """Return the published mean over all assays, or the published correlation of one assay.

    Args:
        model: hub id or folder of the model.
        release: release of the scored assays; None if they are not those of a release.
        max_residues: number of residues in a window.
        assay: name of one assay; None means the mean over all.
    """
    if model not in PUBLISHED:
        return Published(reason=f"no published figure of {model}")
    if assay is None and release != PUBLISHED_RELEASE:
        return Published(reason=f"published for {PUBLISHED_RELEASE}")
    if max_residues != PUBLISHED_RESIDUES:
        return Published(reason=f"published with windows of {PUBLISHED_RESIDUES} residues")
    if assay not in (None, ONE_ASSAY):
        return Published(reason="no published figure of this assay")
    scores = PUBLISHED[model]
    return Published(scores.mean if assay is None else scores.one_assay)


def _rows(file: _File) -> Iterator[dict[str, str]]:
    if not file.member:
        with file.source.open(newline="", encoding="utf-8") as stream:
            yield from csv.DictReader(stream)
        return
    with zipfile.ZipFile(file.source) as archive, archive.open(file.member) as member:
        yield from csv.DictReader(io.TextIOWrapper(member, encoding="utf-8", newline=""))
