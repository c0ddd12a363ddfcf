"""Comparison of layers and poolings by frozen probes on a labelled table (``seqlm layers``).

Penalty, pooling and layer are chosen on the validation split. The test split then gives the figures, with
95 % intervals by bootstrap over clusters of similar proteins. A difference whose interval contains 0 may be
chance.
"""

import csv
import dataclasses
import io
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from seqlm.proteins.finetune.clustering import similarity_clusters
from seqlm.proteins.finetune.labelled import LabelledSplit, SampledSplit
from seqlm.proteins.finetune.labels import Floats
from seqlm.proteins.finetune.probes import Examples, Probe, fit_probe, interval
from seqlm.proteins.finetune.scores import scores
from seqlm.proteins.finetune.table import Record
from seqlm.proteins.inference.embed import layer_embeddings
from seqlm.proteins.inference.engine import Answer, Engine
from seqlm.proteins.inference.job import Command
from seqlm.proteins.inference.poolings import POOLED, POOLINGS
from seqlm.runs.run_file import RunFile
from seqlm.training.heartbeat import beat
from seqlm.training.processes import Processes
from seqlm.training.records import Split
from seqlm.training.tracking.progress import WorkProgress
from seqlm.training.whole_file import write_whole

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
MAX_PROTEINS = {"train": 1000, "validation": 500, "test": 500}
"""Proteins of each split, drawn with a fixed seed."""
RESIDUE_SHARE = 0.15
"""Share of them for a residue task, which has an example for each residue."""
STRENGTHS = (1e-3, 1e-1)
"""Inverse penalties of the probes that are tried."""
RESIDUES = tuple(name for name in POOLINGS if name not in POOLED)
"""Poolings of a residue task, whose examples are residues."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One layer and pooling."""

    layer: int
    pooling: str
    probe: Probe
    outputs: Floats
    """(N, L) on the test split."""


def layers(config: RunFile, here: Processes) -> None:
    """Compare the layers of a model for the task of a run file.

    Raises:
        ValueError: if the model, the data or the output cannot be used.
    """
    command = Command(config, here, "layers")
    name = command.model_name
    path = command.output.path
    engine = command.engine
    if path.exists() and not config.inference.overwrite:
        raise ValueError(f"{path} exists; name another inference.output, or set inference.overwrite=true")
    if not here.is_first:
        return
    data = LabelledSplit(config.data.path, "train")
    schema, numbers = data.schema, tuple(range(len(engine.model.layers) + 1))
    poolings = RESIDUES if schema.task.per_residue else POOLED
    share = RESIDUE_SHARE if schema.task.per_residue else 1
    parts = [SampledSplit(config.data.path, name, int(MAX_PROTEINS[name] * share)) for name in SPLITS]
    if not all(len(part.labels) for part in parts):
        raise ValueError(f"{config.data.path} has an empty split; make layers needs all three")
    answer = layer_embeddings(numbers, poolings)
    features = [_features(part, name, engine, answer) for name, part in zip(SPLITS, parts, strict=True)]
    clusters = _clusters(parts[2])
    counts = (f"{name} {len(part.labels):,}" for name, part in zip(SPLITS, parts, strict=True))
    print(f"examples: {', '.join(counts)}")
    size = engine.model.config.hidden_size
    chosen = []
    for column, (pooling, layer) in enumerate(itertools.product(poolings, numbers)):
        columns = slice(column * size, (column + 1) * size)
        mine = [each[:, columns].astype(np.float32) for each in features]
        train, validation = (Examples(mine[place], parts[place].labels) for place in (0, 1))
        probe = fit_probe(schema, train, validation, STRENGTHS)
        chosen.append(Choice(layer, pooling, probe, probe.outputs(mine[2])))
        print(f"layer {layer} {pooling}: validation {schema.task.headlines[0]} {probe.validation:.3f}")
    best = max(chosen, key=lambda one: np.nan_to_num(one.probe.validation, nan=-np.inf))
    rows = [_row(one, best, parts[2].labels, clusters) for one in chosen]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_whole(path, text.getvalue())
    picture = path.with_suffix(".png")
    _figure(rows, best, schema.task.headlines[0], name).savefig(picture, dpi=150)
    _conclude(rows, best, schema.task.headlines[0])
    print(f"wrote {path}: scores of each layer and pooling\nwrote {picture}: the same as a picture")


def _features(part: SampledSplit, name: str, engine: Engine, answer: Answer) -> Any:
    engine.on_residues = WorkProgress(name, sum(map(len, part.proteins)), "residues").add
    return part.features(partial(engine.run, answer=answer), np.float16)


def _clusters(test: SampledSplit) -> list[str]:
    """Return the cluster of similar proteins of each example."""
    beat("clustering the test proteins", slow=True)
    proteins = zip(test.ids, test.proteins, strict=True)
    clusters, how = similarity_clusters([Record(id, "", tokens.tobytes(), {}) for id, tokens in proteins])
    print(f"test clusters: {len(set(clusters)):,}, by {how}")
    if test.known is None:
        return clusters
    return [one for one, known in zip(clusters, test.known, strict=True) for _ in known]


def _row(one: Choice, best: Choice, labels: Floats, clusters: list[str]) -> dict[str, Any]:
    """Return the line of the table; the differences are those from the choice that validation prefers."""
    schema = one.probe.schema
    value = scores(schema, labels, one.outputs)[schema.task.headlines[0]]
    (low, high), (least, most) = interval(schema, labels, [one.outputs, best.outputs], clusters)
    return {
        **{"layer": one.layer, "pooling": one.pooling, "inverse_penalty": one.probe.strength},
        **{"validation": one.probe.validation, "test": value, "test_low": low, "test_high": high},
        **{"difference_low": least, "difference_high": most, "may_be_chance": bool(least <= 0 <= most)},
    }


def _conclude(rows: list[dict[str, Any]], best: Choice, headline: str) -> None:
    line = next(row for row in rows if (row["layer"], row["pooling"]) == (best.layer, best.pooling))
    print(
        f"validation prefers layer {best.layer}, pooling {best.pooling}: test {headline} {line['test']:.3f} "
        f"(95 % interval {line['test_low']:.3f} to {line['test_high']:.3f})"
    )
    alike = [f"{row['layer']} {row['pooling']}" for row in rows if row["may_be_chance"] and row is not line]
    print(f"not distinguishable from it on the test split: {', '.join(alike) or 'none'}")


def _figure(rows: list[dict[str, Any]], best: Choice, headline: str, model: str) -> Figure:
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axis = figure.subplots()
    poolings = list(dict.fromkeys(row["pooling"] for row in rows))
    for place, pooling in enumerate(poolings):
        mine = [row for row in rows if row["pooling"] == pooling]
        keys = ("layer", "test", "test_low", "test_high")
        x, y, low, high = (np.array([row[key] for row in mine]) for key in keys)
        bars = np.maximum([y - low, high - y], 0)
        label = "residues" if pooling in RESIDUES else pooling
        axis.errorbar(x + 0.08 * (place - len(poolings) / 2), y, bars, marker="o", capsize=2, label=label)
    axis.axvline(best.layer, color="#5b6472", linestyle=":", label=f"chosen on validation: {best.pooling}")
    axis.set(xlabel="layer (0: embedding)", ylabel=f"test {headline}, 95 % intervals over clusters")
    axis.set_title("/".join(Path(model).parts[-2:]), fontsize=10, parse_math=False)
    axis.legend(fontsize=8)
    return figure
