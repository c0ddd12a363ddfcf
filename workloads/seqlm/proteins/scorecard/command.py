"""Scorecard of a masked language model (``seqlm scorecard``): an HTML page and JSON.

The bundled parts take minutes and show that a model works. They give no verdict: their data are small, and
nothing is published for them. ``scorecard.proteingym`` adds the benchmark that variant effects are judged by.
"""

import csv
import dataclasses
import gzip
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seqlm.proteins.alphabet import encode
from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.contacts.head import RANGES, Chain, chains, mean_precisions
from seqlm.proteins.finetune.labels import LabelSchema
from seqlm.proteins.finetune.prepare import TABLES
from seqlm.proteins.finetune.probes import Examples, fit_probe
from seqlm.proteins.finetune.scores import scores
from seqlm.proteins.inference.engine import EMBEDDING, RESIDUE_EMBEDDINGS, Engine
from seqlm.proteins.inference.engine_probabilities import score_variants
from seqlm.proteins.inference.job import Command, await_all
from seqlm.proteins.inference.model_head import check_head
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.model.packed_model import MaskedLanguageModel
from seqlm.proteins.model.protein_packs import ProteinSplit
from seqlm.proteins.mutations.saturation import all_single_mutants
from seqlm.proteins.pretraining.evaluation import pseudo_perplexity, score_model
from seqlm.runs.inference_commands import MASKED_LM
from seqlm.runs.run_file import RunFile
from seqlm.training.hardware import environment
from seqlm.training.packing import PackShape
from seqlm.training.processes import Processes
from seqlm.training.report.page import definition_table, page, section, table
from seqlm.training.whole_file import write_whole

from .proteingym import (
    NOT_COMPARABLE,
    ONE_ASSAY,
    Benchmark,
    averages,
    published,
    read_benchmark,
    result_file,
    score_assays,
)

PSEUDO_PERPLEXITY_PROTEINS = 4
"""Default number of proteins for the pseudo-perplexity."""
PSEUDO_PERPLEXITY_RESIDUES = 256
"""Largest number of residues of each of these proteins."""
LOCALIZATION_PROTEINS = 500
"""Number of bundled proteins for the localization."""
SEED = 0
"""Seed of the drawn proteins and of the synthetic assay's noise."""
FIT_CHAINS = 15
"""Number of bundled chains that the probe of the secondary structure is fitted on. The others choose its
penalty."""
NOT_COMPARTMENTS = ("ACC", "Partition", "Membrane", "Sequence")
"""Columns of the bundled table that are no compartments."""
BUNDLED = "other data than published"
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


@dataclasses.dataclass(frozen=True)
class Row:
    """Result of the scorecard."""

    name: str
    value: float
    data: str
    """Description of the data, with their size."""
    protocol: str
    """Description of the method."""
    published: str = f"{NOT_COMPARABLE}: {BUNDLED}"
    """Published figure, or the reason why there is no comparable one."""


class _Part(NamedTuple):
    """Part of the scorecard."""

    name: str
    compute: Callable[[], list[Row]]
    is_shared: bool
    """True if all processes compute the part together; False if the first one computes it alone."""


def scorecard(config: RunFile, here: Processes) -> None:
    """Write the scorecard of a model; every process calls this.

    Raises:
        ValueError: if the model or ProteinGym's files cannot be read, or the output is of another model.
    """
    command = Command(config, here, "scorecard")
    check_head(
        "scorecard", command.model_name, command.engine.model.config.architectures or [MASKED_LM]
    )
    _check_free(config, command.output.path, command.model_name)
    benchmark = None
    if config.scorecard.proteingym:
        benchmark = read_benchmark(config.scorecard.proteingym, Path(config.data.downloads))
    seconds: dict[str, float] = {}
    rows: list[Row] = []
    for part in _parts(config, command, benchmark):
        started = time.monotonic()
        if here.is_first:
            print(f"scorecard: {part.name}")
            rows += part.compute()
            seconds[part.name] = round(time.monotonic() - started, 1)
        elif part.is_shared:
            part.compute()
    if here.is_first:
        _write(command, rows, seconds, benchmark)


def _check_free(config: RunFile, path: Path, model: str) -> None:
    """Refuse to replace the scorecard of another model without ``inference.overwrite``."""
    file = path.with_suffix(".json")
    if config.inference.overwrite or not file.is_file():
        return
    other = json.loads(file.read_text())["model"]
    if other != model:
        raise ValueError(
            f"{path} is the scorecard of {other}; name another inference.output, or replace it with "
            "inference.overwrite=true"
        )


def _parts(config: RunFile, command: Command, benchmark: Benchmark | None) -> list[_Part]:
    engine = command.engine
    parts = [
        _Part("perplexity", lambda: _perplexity(config, command), is_shared=True),
        _Part("variant effects", lambda: _synthetic_assay(engine), is_shared=False),
        _Part("contacts", lambda: _contacts(engine, command.model_name), is_shared=False),
        _Part("secondary structure", lambda: _secondary_structure(engine), is_shared=False),
        _Part("localization", lambda: _localization(engine), is_shared=False),
    ]
    if benchmark is not None:
        parts.append(
            _Part("ProteinGym", lambda: _proteingym(config, command, benchmark), is_shared=True)
        )
    return parts


def _write(
    command: Command, rows: list[Row], seconds: dict[str, float], benchmark: Benchmark | None
) -> None:
    """Write the page and the JSON, and print the figures."""
    path = command.output.path
    figures = path.with_suffix(".json")
    facts = {
        **command.settings,
        "seconds": seconds,
        "environment": environment(command.here.device),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**facts, "scores": [vars(row) for row in rows]}
    write_whole(figures, json.dumps(document, indent=1) + "\n")
    write_whole(path, _html(command.model_name, rows, facts, benchmark))
    for row in rows:
        print(f"{row.name:48} {row.value:8.3f}   published: {row.published}")
    print(f"wrote {path}: scorecard")
    print(f"wrote {figures}: the same figures")


def _perplexity(config: RunFile, command: Command) -> list[Row]:
    engine = command.engine
    inference = dataclasses.replace(config.inference, model=command.model_name)
    found: dict[str, Any] = score_model(
        dataclasses.replace(config, inference=inference), command.here
    )
    split = ProteinSplit(config.data.path, config.evaluate.split)
    proteins = config.evaluate.pseudo_perplexity_proteins or PSEUDO_PERPLEXITY_PROTEINS
    shape = PackShape.of(split, engine.tokens_per_pack, PSEUDO_PERPLEXITY_RESIDUES)
    model = engine.model
    assert isinstance(model, MaskedLanguageModel)  # checked by its architectures
    pseudo = pseudo_perplexity(
        model,
        split,
        shape,
        num_proteins=proteins,
        dtype=engine.dtype,
        device=engine.device,
        kernels=config.inference.kernels,
        here=command.here,
    )
    data = f"{config.data.path}, split {config.evaluate.split}"
    masks = f"{config.model.mask_fraction:.0%} of the residues, fixed masks"
    drawn = (
        f"{data}: {proteins} proteins drawn with a fixed seed, {PSEUDO_PERPLEXITY_RESIDUES} residues "
        "of each"
    )
    return [
        Row("perplexity", found["perplexity"], f"{data}: {found['proteins']:,} proteins", masks),
        Row("pseudo-perplexity", pseudo, drawn, "each residue masked alone"),
    ]


def _synthetic_assay(engine: Engine) -> list[Row]:
    from scipy.stats import spearmanr

    chain = chains("score")[0]
    variants = all_single_mutants(Protein(chain.id, chain.tokens, ""))
    noise = np.random.default_rng(SEED).normal(size=len(variants))
    changes = [abs(HYDROPATHY[one.name[-1]] - HYDROPATHY[one.name[0]]) for one in variants]
    measured = noise - np.array(changes)
    predicted = score_variants(engine, chain.tokens, variants)
    return [
        Row(
            name="variant effects, SYNTHETIC assay: Spearman",
            value=float(spearmanr(predicted, measured).statistic),
            data=f"{chain.id}: {len(variants):,} single mutants, change of hydropathy and noise",
            protocol="masked marginals; tests the mechanics, says nothing about the model",
        )
    ]


def _contacts(engine: Engine, name: str) -> list[Row]:
    try:
        head = contact_head.load(engine.model, name)
        source = "the model's own contact head"
    except ValueError:
        head = contact_head.fit(engine, chains("fit"))
        source = "regression on 20 other chains"
    scored = chains("score")
    means = mean_precisions(engine, head, scored)
    rows = []
    for kind, (low, high) in RANGES.items():
        distances = f"|i - j| >= {low}" if kind == "long" else f"|i - j| {low} to {high}"
        rows.append(
            Row(
                name=f"contacts, {kind} range: precision at L",
                value=means[kind],
                data=f"{len(scored)} bundled chains of the PDB",
                protocol=f"{source}; {distances}",
            )
        )
    return rows


def _secondary_structure(engine: Engine) -> list[Row]:
    schema = LabelSchema("residue", ("structure",), ("H", "E", "C"))

    def examples(of: list[Chain]) -> Examples:
        """Return the residues with a known structure."""
        embeddings = engine.run([chain.tokens for chain in of], RESIDUE_EMBEDDINGS)
        letters = "".join(chain.structure for chain in of)
        labels = [
            schema.classes.index(one) if one in schema.classes else math.nan for one in letters
        ]
        known = np.flatnonzero(np.isfinite(labels))
        return Examples(
            np.concatenate(embeddings)[known], np.array(labels, dtype=np.float32)[known, None]
        )

    fit = chains("fit")
    probe = fit_probe(schema, examples(fit[:FIT_CHAINS]), examples(fit[FIT_CHAINS:]))
    test = examples(chains("score"))
    return [
        Row(
            name="secondary structure: accuracy (Q3)",
            value=scores(schema, test.labels, probe.outputs(test.features))["accuracy"],
            data=f"{len(test.labels):,} residues of 30 bundled chains (DSSP, 3 states)",
            protocol="frozen probe on residues, 20 other chains",
        )
    ]


def _localization(engine: Engine) -> list[Row]:
    with gzip.open(TABLES.sample, "rt", newline="") as file:
        table = list(csv.DictReader(file))
    chosen = np.random.default_rng(SEED).permutation(len(table))[:LOCALIZATION_PROTEINS]
    table = [table[number] for number in chosen]
    compartments = [column for column in table[0] if column not in NOT_COMPARTMENTS]
    schema = LabelSchema("multilabel", tuple(compartments))
    features = np.stack(engine.run([encode(row["Sequence"]) for row in table], EMBEDDING))
    labels = np.array([[row[name] for name in schema.columns] for row in table], dtype=np.float32)
    fold = np.array([row["Partition"] for row in table])

    def examples(*folds: str) -> Examples:
        rows = np.isin(fold, folds)
        return Examples(features[rows], labels[rows])

    probe = fit_probe(schema, examples("0", "1", "2"), examples("3"))
    test = examples("4")
    found = scores(schema, test.labels, probe.outputs(test.features))
    data = (
        f"{len(test.labels)} of {len(table)} bundled proteins, {len(schema.columns)} compartments"
    )
    return [
        Row(
            f"localization: {name}",
            found[name],
            data,
            "frozen probe on mean embeddings, split by cluster",
        )
        for name in ("jaccard", "auroc")
    ]


def _proteingym(config: RunFile, command: Command, benchmark: Benchmark) -> list[Row]:
    here = command.here
    folder = command.output.folder
    key = hashlib.sha256(json.dumps(command.settings).encode()).hexdigest()
    score_assays(benchmark, command.engine, folder, key, here.rank, here.world_size)
    if not here.is_first:
        return []
    files = {assay.name: result_file(folder, assay, key) for assay in benchmark.assays}
    await_all(files.values())
    found = {name: json.loads(file.read_text()) for name, file in files.items()}
    correlations = {name: one["spearman"] for name, one in found.items()}
    protocol = "masked marginals, mean by protein, then type, then over types"
    max_residues = config.model.max_residues
    rows = []
    for kind, mean in averages(benchmark, correlations).items():
        compared = ""
        if kind == "all":
            compared = published(command.model_name, benchmark.release, max_residues)
        data = f"{benchmark.release or 'part of a release'}: {len(found)} assays"
        rows.append(Row(f"ProteinGym, {kind}: Spearman", mean, data, protocol, compared))
    for name, one in found.items():
        compared = ""
        if name == ONE_ASSAY:
            compared = published(command.model_name, None, max_residues, name)
        data = f"{one['variants']:,} variants"
        rows.append(Row(f"ProteinGym, {name}", one["spearman"], data, protocol, compared))
    return rows


def _html(model: str, rows: list[Row], facts: dict[str, Any], benchmark: Benchmark | None) -> str:
    """Return the page."""
    note = (
        '<p class="note">The bundled parts are small. They show that a model works, and compare your '
        "own models with each other. They give no verdict.</p>"
    )
    gym = [row for row in rows if row.name.startswith("ProteinGym")]
    bundled = [row for row in rows if row not in gym]
    parts = [section("Bundled data", note + _table(bundled))]
    if benchmark is not None:
        parts.append(section("ProteinGym, zero-shot", _table(gym)))
    pairs = [("model", model), ("precision", str(facts["precision"]))]
    pairs += [(f"seconds: {name}", str(value)) for name, value in facts["seconds"].items()]
    pairs += [
        (name, str(value)) for name, value in facts["environment"].items() if value is not None
    ]
    parts.append(section("Run", definition_table(pairs)))
    return page("Scorecard", "/".join(Path(model).parts[-3:]), "", parts)


def _table(rows: Iterable[Row]) -> str:
    titles = ("score", "this model", "published", "data", "protocol")
    cells = [(row.name, f"{row.value:.3f}", row.published, row.data, row.protocol) for row in rows]
    return table(titles, cells)
