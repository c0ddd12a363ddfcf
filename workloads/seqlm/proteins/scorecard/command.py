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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from seqlm.proteins.alphabet import encode
from seqlm.proteins.contacts import head as contact_head
from seqlm.proteins.contacts.head import RANGES, Chain, chains, precision
from seqlm.proteins.finetune.labels import LabelSchema
from seqlm.proteins.finetune.prepare import TABLES
from seqlm.proteins.finetune.probes import Examples, fit_probe
from seqlm.proteins.finetune.scores import scores
from seqlm.proteins.inference.engine import EMBEDDING, RESIDUE_EMBEDDINGS, Engine
from seqlm.proteins.inference.job import Command, await_all
from seqlm.proteins.inference.masked_marginals import masked_marginals
from seqlm.proteins.inference.model_head import check_head
from seqlm.proteins.inference.mutations import all_single_mutants
from seqlm.proteins.inference.records import Protein
from seqlm.proteins.model.packed_model import MaskedLanguageModel
from seqlm.proteins.model.protein_packs import ProteinSplit
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

PSEUDO_PERPLEXITY_PROTEINS, PSEUDO_PERPLEXITY_RESIDUES = 4, 256
LOCALIZATION_PROTEINS = 500
BUNDLED = "other data than published"
_SCALE = "A 1.8 C 2.5 D -3.5 E -3.5 F 2.8 G -0.4 H -3.2 I 4.5 K -3.9 L 3.8 M 1.9 N -3.5 P -1.6 Q -3.5 R -4.5"
_PAIRS = iter(f"{_SCALE} S -0.8 T -0.7 V 4.2 W -0.9 Y -1.3".split())
HYDROPATHY = {letter: float(value) for letter, value in zip(_PAIRS, _PAIRS, strict=True)}
"""Kyte and Doolittle 1982, for the synthetic assay."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Result of the scorecard."""

    name: str
    value: float
    data: str
    """Data and size."""
    protocol: str
    published: str = f"{NOT_COMPARABLE}: {BUNDLED}"


def scorecard(config: RunFile, here: Processes) -> None:
    """Write the scorecard of a model; every process calls this.

    Raises:
        ValueError: if the model or ProteinGym's files cannot be read, or the output is of another model.
    """
    command = Command(config, here, "scorecard")
    check_head("scorecard", command.model_name, command.engine.model.config.architectures or [MASKED_LM])
    path = command.output.path
    _check_free(config, path, command.model_name)
    seconds, rows = dict[str, float](), list[Row]()
    benchmark = None
    if config.scorecard.proteingym:
        benchmark = read_benchmark(config.scorecard.proteingym, Path(config.data.downloads))
    for name, part in _parts(config, command, benchmark).items():
        started = time.monotonic()
        if here.is_first:
            print(f"scorecard: {name}")
        found = part()
        if here.is_first:
            rows += found
            seconds[name] = round(time.monotonic() - started, 1)
    if not here.is_first:
        return
    facts = {**command.settings, "seconds": seconds, "environment": environment(here.device)}
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {**facts, "scores": [vars(row) for row in rows]}
    write_whole(path.with_suffix(".json"), json.dumps(document, indent=1) + "\n")
    write_whole(path, _html(command.model_name, rows, facts, benchmark))
    for row in rows:
        print(f"{row.name:48} {row.value:8.3f}   published: {row.published}")
    print(f"wrote {path}: scorecard\nwrote {path.with_suffix('.json')}: the same figures")


def _check_free(config: RunFile, path: Path, model: str) -> None:
    file = path.with_suffix(".json")
    other = json.loads(file.read_text())["model"] if file.is_file() else model
    if other != model and not config.inference.overwrite:
        raise ValueError(
            f"{path} is the scorecard of {other}; name another inference.output, or replace it with "
            "inference.overwrite=true"
        )


def _parts(
    config: RunFile, command: Command, benchmark: Benchmark | None
) -> dict[str, Callable[[], list[Row]]]:
    """Return the parts; the first and the last are computed by all processes, the others by the first one."""
    engine, is_first = command.engine, command.here.is_first

    def alone(part: Callable[[Engine], list[Row]]) -> Callable[[], list[Row]]:
        return lambda: part(engine) if is_first else []

    parts = {
        "perplexity": lambda: _perplexity(config, command),
        "variant effects": alone(_synthetic_assay),
        "contacts": alone(lambda engine: _contacts(engine, command.model_name)),
        "secondary structure": alone(_secondary_structure),
        "localization": alone(_localization),
    }
    if benchmark is not None:
        parts["ProteinGym"] = lambda: _proteingym(config, command, benchmark)
    return parts


def _perplexity(config: RunFile, command: Command) -> list[Row]:
    engine, inference = command.engine, dataclasses.replace(config.inference, model=command.model_name)
    found: dict[str, Any] = score_model(dataclasses.replace(config, inference=inference), command.here)
    split = ProteinSplit(config.data.path, config.evaluate.split)
    proteins = config.evaluate.pseudo_perplexity_proteins or PSEUDO_PERPLEXITY_PROTEINS
    shape = PackShape.of(split, engine.tokens_per_pack, PSEUDO_PERPLEXITY_RESIDUES)
    model = engine.model
    assert isinstance(model, MaskedLanguageModel)  # checked by its architectures
    pseudo = pseudo_perplexity(
        model, split, shape, num_proteins=proteins, dtype=engine.dtype, device=engine.device
    )
    data = f"{config.data.path}, split {config.evaluate.split}"
    masks = f"{config.model.mask_fraction:.0%} of the residues, fixed masks"
    drawn = (
        f"{data}: {proteins} proteins drawn with a fixed seed, {PSEUDO_PERPLEXITY_RESIDUES} residues of each"
    )
    return [
        Row("perplexity", found["perplexity"], f"{data}: {found['proteins']:,} proteins", masks),
        Row("pseudo-perplexity", pseudo, drawn, "each residue masked alone"),
    ]


def _synthetic_assay(engine: Engine) -> list[Row]:
    from scipy.stats import spearmanr

    chain = chains("score")[0]
    variants = all_single_mutants(Protein(chain.id, chain.tokens, ""))
    noise = np.random.default_rng(0).normal(size=len(variants))
    values = [-abs(HYDROPATHY[one.name[-1]] - HYDROPATHY[one.name[0]]) for one in variants]
    predicted = masked_marginals(engine, chain.tokens, variants)
    return [
        Row(
            "variant effects, SYNTHETIC assay: Spearman",
            float(spearmanr(predicted, np.array(values) + noise).statistic),
            f"{chain.id}: {len(variants):,} single mutants, change of hydropathy and noise",
            "masked marginals; tests the mechanics, says nothing about the model",
        )
    ]


def _contacts(engine: Engine, name: str) -> list[Row]:
    try:
        head, source = contact_head.load(engine.model, name), "the model's own contact head"
    except ValueError:
        head, source = contact_head.fit(engine, chains("fit")), "regression on 20 other chains"
    scored = [(chain, head.probabilities(engine, chain.tokens)) for chain in chains("score")]
    return [
        Row(
            f"contacts, {kind} range: precision at L",
            float(np.mean([precision(*each, kind) for each in scored])),
            f"{len(scored)} bundled chains of the PDB",
            f"{source}; |i - j| {low} to {high}" if kind != "long" else f"{source}; |i - j| >= {low}",
        )
        for kind, (low, high) in RANGES.items()
    ]


def _secondary_structure(engine: Engine) -> list[Row]:
    schema = LabelSchema("residue", ("structure",), ("H", "E", "C"))

    def examples(of: list[Chain]) -> Examples:
        found = engine.run([chain.tokens for chain in of], RESIDUE_EMBEDDINGS)
        letters = "".join(chain.structure for chain in of)
        labels = [schema.classes.index(one) if one in schema.classes else math.nan for one in letters]
        known = np.flatnonzero(np.isfinite(labels))
        return Examples(np.concatenate(found)[known], np.array(labels, dtype=np.float32)[known, None])

    fit, test = chains("fit"), examples(chains("score"))
    probe = fit_probe(schema, examples(fit[:15]), examples(fit[15:]))
    accuracy = scores(schema, test.labels, probe.outputs(test.features))["accuracy"]
    data = f"{len(test.labels):,} residues of 30 bundled chains (DSSP, 3 states)"
    protocol = "frozen probe on residues, 20 other chains"
    return [Row("secondary structure: accuracy (Q3)", accuracy, data, protocol)]


def _localization(engine: Engine) -> list[Row]:
    with gzip.open(TABLES.sample, "rt", newline="") as file:
        table = list(csv.DictReader(file))
    chosen = np.random.default_rng(0).permutation(len(table))[:LOCALIZATION_PROTEINS]
    table = [table[number] for number in chosen]
    schema = LabelSchema("multilabel", tuple(list(table[0])[3:-1]))
    features = np.stack(engine.run([encode(row["Sequence"]) for row in table], EMBEDDING))
    labels = np.array([[row[name] for name in schema.columns] for row in table], dtype=np.float32)
    fold = np.array([row["Partition"] for row in table])

    def examples(*folds: str) -> Examples:
        rows = np.isin(fold, folds)
        return Examples(features[rows], labels[rows])

    probe, test = fit_probe(schema, examples("0", "1", "2"), examples("3")), examples("4")
    found = scores(schema, test.labels, probe.outputs(test.features))
    data = f"{len(test.labels)} of {len(table)} bundled proteins, {len(schema.columns)} compartments"
    return [
        Row(f"localization: {name}", found[name], data, "frozen probe on mean embeddings, split by cluster")
        for name in ("jaccard", "auroc")
    ]


def _proteingym(config: RunFile, command: Command, benchmark: Benchmark) -> list[Row]:
    here, engine, model = command.here, command.engine, command.model_name
    folder = command.output.folder
    key = hashlib.sha256(json.dumps(command.settings).encode()).hexdigest()
    score_assays(benchmark, engine, folder, key, here.rank, here.world_size)
    files = {assay.name: result_file(folder, assay, key) for assay in benchmark.assays}
    if not here.is_first:
        return []
    await_all(files.values())
    found = {name: json.loads(file.read_text()) for name, file in files.items()}
    correlations = {name: one["spearman"] for name, one in found.items()}
    protocol = "masked marginals, mean by protein, then type, then over types"
    compared = published(model, benchmark.release, config.model.max_residues)
    data = f"{benchmark.release or 'part of a release'}: {len(found)} assays"
    rows = [
        Row(f"ProteinGym, {kind}: Spearman", mean, data, protocol, compared if kind == "all" else "")
        for kind, mean in averages(benchmark, correlations).items()
    ]
    for name, one in found.items():
        compared = published(model, None, config.model.max_residues, name)
        shown = compared if name == ONE_ASSAY else ""
        size = f"{one['variants']:,} variants"
        rows.append(Row(f"ProteinGym, {name}", one["spearman"], size, protocol, shown))
    return rows


def _html(model: str, rows: list[Row], facts: dict[str, Any], benchmark: Benchmark | None) -> str:
    titles = ("score", "this model", "published", "data", "protocol")

    def shown(of: Iterator[Row]) -> str:
        return table(titles, [(r.name, f"{r.value:.3f}", r.published, r.data, r.protocol) for r in of])

    note = (
        '<p class="note">The bundled parts are small. They show that a model works, and compare your '
        "own models with each other. They give no verdict.</p>"
    )
    gym = [row for row in rows if row.name.startswith("ProteinGym")]
    parts = [section("Bundled data", note + shown(row for row in rows if row not in gym))]
    if benchmark is not None:
        parts.append(section("ProteinGym, zero-shot", shown(iter(gym))))
    pairs = [("model", model), ("precision", str(facts["precision"]))]
    pairs += [(f"seconds: {name}", str(value)) for name, value in facts["seconds"].items()]
    pairs += [(name, str(value)) for name, value in facts["environment"].items() if value is not None]
    parts.append(section("Run", definition_table(pairs)))
    return page("Scorecard", "/".join(Path(model).parts[-3:]), "", parts)
