"""Comparison of layers and poolings by frozen probes on a labelled table (``seqlm layers``).

Penalty, pooling and layer are chosen on the validation split. The test split then gives the figures, with
95 % intervals by bootstrap over clusters of similar proteins. A difference whose interval contains 0 may be
chance.
"""

import csv
import dataclasses
import io
import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from seqlm.proteins.finetune.clustering import similarity_clusters
from seqlm.proteins.finetune.labelled import LabelledSplit, SampledSplit
from seqlm.proteins.finetune.labels import Floats, LabelSchema
from seqlm.proteins.finetune.probes import Examples, Probe, fit_probe, interval
from seqlm.proteins.finetune.scores import scores
from seqlm.proteins.finetune.table import Record
from seqlm.proteins.inference.embed import layer_embeddings
from seqlm.proteins.inference.engine import Answer, Engine
from seqlm.proteins.inference.job import Command
from seqlm.proteins.inference.poolings import POOLED, POOLINGS
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.runs.run_file import RunFile
from seqlm.training.heartbeat import beat
from seqlm.training.processes import Processes
from seqlm.training.records import Split
from seqlm.training.tracking.progress import WorkProgress
from seqlm.training.whole_file import write_whole

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
MAX_PROTEINS = {"train": 1000, "validation": 500, "test": 500}
"""Number of proteins of each split, drawn with a fixed seed."""
RESIDUE_SHARE = 0.15
"""Share of these proteins for a residue task, which has an example for each residue."""
STRENGTHS = (1e-3, 1e-1)
"""Inverse penalties of the probes that are tried."""
RESIDUES = tuple(name for name in POOLINGS if name not in POOLED)
"""Poolings of a residue task, whose examples are residues."""


@dataclasses.dataclass(frozen=True)
class _Features:
    """Examples of a split, with the features of all layers and poolings."""

    features: npt.NDArray[np.float16]
    """Features side by side, in the order of the columns, (N, columns * C)."""
    labels: Floats

    def column(self, number: int, size: int) -> Examples:
        """Return the examples with the features of one layer and pooling, (N, C)."""
        mine = self.features[:, number * size : (number + 1) * size]
        return Examples(mine.astype(np.float32), self.labels)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Layer and pooling, with the probe that was fitted on it."""

    layer: int
    pooling: str
    probe: Probe
    outputs: Floats
    """Outputs of the probe on the test split, (N, L)."""


def layers(config: RunFile, here: Processes) -> None:
    """Compare the layers of a model for the task of a run file.

    Raises:
        ValueError: if the model, the data or the output cannot be used.
    """
    command = Command(config, here, "layers")
    path = command.output.path
    if path.exists() and not config.inference.overwrite:
        raise ValueError(
            f"{path} exists; name another inference.output, or set inference.overwrite=true"
        )
    if not here.is_first:
        return
    schema = LabelledSplit(config.data.path, "train").schema
    headline = schema.task.headlines[0]
    splits = {name: _drawn(config, name, per_residue=schema.task.per_residue) for name in SPLITS}
    if not all(len(split.labels) for split in splits.values()):
        raise ValueError(f"{config.data.path} has an empty split; make layers needs all three")
    test = splits["test"]
    clusters = _clusters(test)
    chosen = _fitted(command, schema, splits)
    best = max(chosen, key=lambda one: np.nan_to_num(one.probe.validation, nan=-np.inf))
    rows = [_row(one, best, test.labels, clusters) for one in chosen]
    _write_table(path, rows)
    picture = path.with_suffix(".png")
    _figure(rows, best, headline, command.model_name).savefig(picture, dpi=150)
    _conclude(rows, best, headline)
    print(f"wrote {path}: scores of each layer and pooling")
    print(f"wrote {picture}: the same as a picture")
    for counts in _counts(splits):
        print(counts.line())


def _drawn(config: RunFile, name: Split, *, per_residue: bool) -> SampledSplit:
    """Return some proteins of a split."""
    share = RESIDUE_SHARE if per_residue else 1
    return SampledSplit(config.data.path, name, int(MAX_PROTEINS[name] * share))


def _counts(splits: Mapping[Split, SampledSplit]) -> list[Counts]:
    """Return the numbers of proteins and labels of all splits."""
    proteins = Counts("proteins")
    labels = Counts("labels")
    for split in splits.values():
        proteins.used += len(split.ids)
        proteins.left_out[Kind.NOT_DRAWN] += split.num_units - len(split.ids)
        num_labels = int(np.isfinite(split.labels).sum())
        num_places = split.labels.size if split.known is None else sum(map(len, split.proteins))
        labels.used += num_labels
        labels.left_out[Kind.NO_LABEL] += num_places - num_labels
    return [proteins, labels]


def _fitted(
    command: Command, schema: LabelSchema, splits: Mapping[Split, SampledSplit]
) -> list[Choice]:
    """Return a fitted probe for each pooling and layer."""
    model = command.engine.model
    numbers = tuple(range(len(model.layers) + 1))
    poolings = RESIDUES if schema.task.per_residue else POOLED
    answer = layer_embeddings(numbers, poolings)
    features = {
        name: _features(split, name, command.engine, answer) for name, split in splits.items()
    }
    counts = ", ".join(f"{name} {len(split.labels):,}" for name, split in splits.items())
    print(f"examples: {counts}")
    size = model.config.hidden_size
    chosen = []
    for column, (pooling, layer) in enumerate(itertools.product(poolings, numbers)):
        train = features["train"].column(column, size)
        validation = features["validation"].column(column, size)
        probe = fit_probe(schema, train, validation, STRENGTHS)
        outputs = probe.outputs(features["test"].column(column, size).features)
        chosen.append(Choice(layer, pooling, probe, outputs))
        print(
            f"layer {layer} {pooling}: validation {schema.task.headlines[0]} {probe.validation:.3f}"
        )
    return chosen


def _features(split: SampledSplit, name: str, engine: Engine, answer: Answer) -> _Features:
    num_residues = sum(map(len, split.proteins))
    engine.on_residues = WorkProgress(name, num_residues, "residues").add
    found = split.features(partial(engine.run, answer=answer), np.float16)
    return _Features(found, split.labels)


def _clusters(test: SampledSplit) -> list[str]:
    """Return the cluster of similar proteins of each example."""
    beat("clustering the test proteins", slow=True)
    proteins = zip(test.ids, test.proteins, strict=True)
    records = [Record(id, "", tokens.tobytes(), {}) for id, tokens in proteins]
    clusters, method = similarity_clusters(records)
    print(f"test clusters: {len(set(clusters)):,}, by {method}")
    if test.known is None:
        return clusters
    # The examples of a residue task are the residues with a label.
    of_residues: list[str] = []
    for cluster, known in zip(clusters, test.known, strict=True):
        of_residues += [cluster] * len(known)
    return of_residues


def _row(one: Choice, best: Choice, labels: Floats, clusters: list[str]) -> dict[str, Any]:
    """Return the line of the table; the differences are those from the choice that validation prefers."""
    schema = one.probe.schema
    value = scores(schema, labels, one.outputs)[schema.task.headlines[0]]
    (low, high), (least, most) = interval(schema, labels, [one.outputs, best.outputs], clusters)
    return {
        "layer": one.layer,
        "pooling": one.pooling,
        "inverse_penalty": one.probe.strength,
        "validation": one.probe.validation,
        "test": value,
        "test_low": low,
        "test_high": high,
        "difference_low": least,
        "difference_high": most,
        "may_be_chance": bool(least <= 0 <= most),
    }


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_whole(path, text.getvalue())


def _conclude(rows: list[dict[str, Any]], best: Choice, headline: str) -> None:
    """Print the choice that validation prefers, and the ones that are as good within the uncertainty."""
    line = next(row for row in rows if (row["layer"], row["pooling"]) == (best.layer, best.pooling))
    print(
        f"validation prefers layer {best.layer}, pooling {best.pooling}: test {headline} {line['test']:.3f} "
        f"(95 % interval {line['test_low']:.3f} to {line['test_high']:.3f})"
    )
    alike = [
        f"{row['layer']} {row['pooling']}"
        for row in rows
        if row["may_be_chance"] and row is not line
    ]
    print(f"not distinguishable from it on the test split: {', '.join(alike) or 'none'}")


def _figure(rows: list[dict[str, Any]], best: Choice, headline: str, model: str) -> Figure:
    """Return the picture of the test scores by layer, with a line for each pooling."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axis = figure.subplots()
    poolings = list(dict.fromkeys(row["pooling"] for row in rows))
    for place, pooling in enumerate(poolings):
        mine = [row for row in rows if row["pooling"] == pooling]
        values = {
            key: np.array([row[key] for row in mine])
            for key in ("layer", "test", "test_low", "test_high")
        }
        test = values["test"]
        bars = np.maximum([test - values["test_low"], values["test_high"] - test], 0)
        # The lines are moved a little, so that their intervals stand beside each other.
        x = values["layer"] + 0.08 * (place - len(poolings) / 2)
        label = "residues" if pooling in RESIDUES else pooling
        axis.errorbar(x, test, bars, marker="o", capsize=2, label=label)
    axis.axvline(
        best.layer, color="#5b6472", linestyle=":", label=f"chosen on validation: {best.pooling}"
    )
    axis.set(xlabel="layer (0: embedding)", ylabel=f"test {headline}, 95 % intervals over clusters")
    axis.set_title("/".join(Path(model).parts[-2:]), fontsize=10, parse_math=False)
    axis.legend(fontsize=8)
    return figure
