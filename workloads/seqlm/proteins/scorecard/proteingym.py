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

import numpy as np

from seqlm.proteins.alphabet import encode
from seqlm.proteins.families.family import ProteinGymScores
from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.proteins.inference.engine import Engine
from seqlm.proteins.inference.masked_marginals import masked_marginals
from seqlm.proteins.inference.mutations import Variant, parse_variant
from seqlm.proteins.inference.records import Protein
from seqlm.training.data.transfer import SourceKind, fetch
from seqlm.training.whole_file import write_whole

REFERENCE = "DMS_substitutions.csv"
FILES = SourceKind("ProteinGym", (".zip", ".csv"), Path(), {})
RELEASES = {"3120c929e5b4c1723a5299d6601cd25d244c68c2125763fe6323ffea248879e6": "v1.3"}
"""Releases by the SHA-256 of the assays' names and target sequences (``fingerprint``)."""
NOT_COMPARABLE = "not comparable"
TOLERANCE = 0.005
"""Differences between correct programs: types of numbers, windows of the longest proteins, rounding."""
PUBLISHED: Mapping[str, ProteinGymScores] = {
    hub_id: scores for family in MODEL_FAMILIES.values() for hub_id, scores in family.proteingym.items()
}
"""Published scores of all families, by hub id."""
ONE_ASSAY = "BLAT_ECOLX_Stiffler_2015"
PUBLISHED_RELEASE = "v1.3"
PUBLISHED_RESIDUES = 1022
"""Residues in a window."""


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
        for line, row in enumerate(_rows(self.source, self.member), start=2):
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
        lines = sorted(f"{assay.name} {assay.target}" for assay in self.assays)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def release(self) -> str | None:
        """Return the release if the assays are complete, such as ``v1.3``."""
        return RELEASES.get(self.fingerprint)


def read_benchmark(locations: Sequence[str], downloads: Path) -> Benchmark:
    """Find the reference file and the assays that are there.

    Args:
        locations: folders, .zip and .csv files, or their addresses, with the reference file and the assays.
        downloads: folder for downloaded files.

    Raises:
        ValueError: if there is no reference file, or no assay of it.
    """
    files: dict[str, tuple[Path, str]] = {}
    for path in [path for location in locations for path in fetch(location, downloads, FILES)]:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                files |= {Path(name).name: (path, name) for name in archive.namelist()}
        else:
            files[path.name] = (path, "")
    if REFERENCE not in files:
        raise ValueError(
            f"scorecard.proteingym: no {REFERENCE} in {', '.join(locations)}; add it to the list"
        )
    columns = ("DMS_id", "UniProt_ID", "coarse_selection_type", "target_seq")
    assays = []
    for row in _rows(*files[REFERENCE]):
        if row["DMS_filename"] in files:
            name, protein, kind, target = (row[column] for column in columns)
            assays.append(Assay(name, protein, kind, target, *files[row["DMS_filename"]]))
    if not assays:
        raise ValueError(f"scorecard.proteingym: no assay of {REFERENCE} in {', '.join(locations)}")
    return Benchmark(tuple(assays))


def score_assays(
    benchmark: Benchmark, engine: Engine, folder: Path, key: str, rank: int, world_size: int
) -> None:
    """Score this process's share of the assays, without those that an earlier start has scored.

    Args:
        benchmark: assays.
        engine: masked language model.
        folder: receives a file with the correlation of each assay.
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
        variants, measured = zip(*assay.measured(), strict=True)
        predicted = masked_marginals(engine, encode(assay.target), variants)
        correlation = float(spearmanr(predicted, measured).statistic)
        write_whole(file, json.dumps({"spearman": correlation, "variants": len(variants)}) + "\n")
        progress = f"{number + 1} of {len(benchmark.assays)}"
        print(f"{progress}: {assay.name} {correlation:.3f} ({len(variants):,} variants)")


def result_file(folder: Path, assay: Assay, key: str) -> Path:
    return folder / f"{assay.name}-{key[:16]}.json"


def averages(benchmark: Benchmark, correlations: Mapping[str, float]) -> dict[str, float]:
    """Return the mean correlation of each type of selection, and that over the types as ``all``.

    The correlations are first averaged over the assays of each protein and type.
    """
    proteins: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for assay in benchmark.assays:
        proteins[assay.kind][assay.protein].append(correlations[assay.name])
    kinds = {
        kind: float(np.mean([np.mean(values) for values in by_protein.values()]))
        for kind, by_protein in sorted(proteins.items())
    }
    return {**kinds, "all": float(np.mean(list(kinds.values())))}


def published(model: str, release: str | None, max_residues: int, assay: str | None = None) -> str:
    """Return the published mean over all assays or the correlation of one assay, or why there is none.

    Args:
        model: hub id, or a folder.
        release: release of the scored assays; None if they are not those of a release.
        max_residues: residues in a window.
        assay: name of one assay; None is the mean.
    """
    reasons = {
        f"no published figure of {model}": model not in PUBLISHED,
        f"published for {PUBLISHED_RELEASE}": assay is None and release != PUBLISHED_RELEASE,
        f"published with windows of {PUBLISHED_RESIDUES} residues": max_residues != PUBLISHED_RESIDUES,
        "no published figure of this assay": assay not in (None, ONE_ASSAY),
    }
    if reason := next((text for text, holds in reasons.items() if holds), None):
        return f"{NOT_COMPARABLE}: {reason}"
    scores = PUBLISHED[model]
    correlation = scores.mean if assay is None else scores.one_assay
    return f"{correlation:.3f} \N{PLUS-MINUS SIGN} {TOLERANCE}"


def _rows(source: Path, member: str) -> Iterator[dict[str, str]]:
    if not member:
        with source.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)
        return
    with zipfile.ZipFile(source) as archive, archive.open(member) as file:
        yield from csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
