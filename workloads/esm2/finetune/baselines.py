"""Baselines of a fine-tuned model: a frozen probe of the model it started from, and k-mers.

Both are linear models by scikit-learn, whose penalty is chosen on validation. k-mers of proteins are counts
of three residues in a row. Those of a residue are the residues around it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from workloads import families
from workloads.esm2.alphabet import PAD, decode
from workloads.esm2.inference.engine import EMBEDDING, RESIDUE_EMBEDDINGS, Engine
from workloads.esm2.probes import Examples, fit_probe
from workloads.run_file import RunFile
from workloads.training.objective import Place
from workloads.training.records import Split
from workloads.training.whole_file import write_whole

from .labelled import LabelledSplit
from .scores import scores
from .task_kinds import IGNORED

FILE = "baselines.json"
MAX_PROTEINS = {"train": 1000, "validation": 300, "test": 300}
"""Proteins of each split, drawn with a fixed seed. A residue task has ``RESIDUE_SHARE`` of them."""
RESIDUE_SHARE = 0.15
MAX_PARAMETERS = 1_000_000_000
"""Largest model that is probed: it must fit on one device beside nothing else."""
WINDOW = 7
"""Residues on either side of a residue."""


def write_baselines(config: RunFile, place: Place) -> Path:
    """Score the baselines of a run on its test split, or validation without one; write them to its folder."""
    splits: tuple[Split, ...] = ("train", "validation", "test")
    parts = [_Sample(config.data.path, name) for name in splits]
    scored = 2 if parts[2].proteins else 1
    schema = parts[0].split.schema
    features = {"k-mers": _kmers(parts, per_residue=schema.task.per_residue)}
    if start := config.model.init_from:
        print("baselines: frozen probe and k-mers")
        model = families.load_model(start, config.model.family)
        if sum(parameter.numel() for parameter in model.parameters()) <= MAX_PARAMETERS:
            engine = Engine(
                model, device=place.here.device, dtype=place.dtype, max_residues=config.model.max_residues
            )
            answer = RESIDUE_EMBEDDINGS if schema.task.per_residue else EMBEDDING
            features = {"frozen probe": [_embedded(engine, part, answer) for part in parts], **features}
    found = {}
    for name, (train, validation, test) in features.items():
        probe = fit_probe(schema, train, validation)
        examples = test if scored == 2 else validation
        found[name] = scores(schema, examples.labels, probe.outputs(examples.features))
    document = {
        **{"split": splits[scored], "train": len(parts[0].proteins), "proteins": len(parts[scored].proteins)},
        "scores": found,
    }
    write_whole(config.run_dir / FILE, json.dumps(document, indent=1) + "\n")
    return config.run_dir / FILE


class _Sample:
    """Proteins of a split, with the labels of their examples."""

    def __init__(self, folder: str, name: Split) -> None:
        split = LabelledSplit(folder, name)
        self.split, self.per_residue = split, split.schema.task.per_residue
        most = int(MAX_PROTEINS[name] * (RESIDUE_SHARE if self.per_residue else 1))
        drawn = np.random.default_rng(0).permutation(split.num_units)[:most]
        units = np.sort(drawn).astype(np.int64)
        self.proteins = [split.residues(split.draw(int(unit), 1, 0, 0)[0][0]) for unit in units]
        if not self.per_residue:
            self.labels = split.labels(units)
            return
        classes = split.residue_labels(units)
        self.known = [np.flatnonzero(each != IGNORED) for each in classes]
        chosen = [each[known] for each, known in zip(classes, self.known, strict=True)]
        self.labels = np.concatenate([np.empty(0), *chosen]).astype(np.float32)[:, None]


def _embedded(engine: Engine, part: _Sample, answer: Any) -> Examples:
    rows = engine.run(part.proteins, answer)
    if part.per_residue:
        rows = [each[known] for each, known in zip(rows, part.known, strict=True)]
        return Examples(np.concatenate([np.empty((0, engine.model.config.hidden_size)), *rows]), part.labels)
    return Examples(np.array(rows).reshape(len(rows), -1), part.labels)


def _kmers(parts: list[_Sample], *, per_residue: bool) -> list[Examples]:
    from sklearn.feature_extraction.text import CountVectorizer

    if per_residue:
        return [Examples(_windows(part), part.labels) for part in parts]
    counts = CountVectorizer(analyzer="char", ngram_range=(3, 3), lowercase=False)
    counts.fit([decode(protein) for protein in parts[0].proteins])
    return [Examples(counts.transform([decode(p) for p in part.proteins]), part.labels) for part in parts]


def _windows(part: _Sample) -> npt.NDArray[np.float32]:
    """Return the residues around each labelled residue, one-hot, (N, (2 * WINDOW + 1) * 33)."""
    around = []
    for protein, known in zip(part.proteins, part.known, strict=True):
        padded = np.pad(protein, WINDOW, constant_values=PAD)
        around.append(np.lib.stride_tricks.sliding_window_view(padded, 2 * WINDOW + 1)[known])
    tokens = np.concatenate([np.empty((0, 2 * WINDOW + 1), dtype=np.uint8), *around])
    return np.asarray(np.eye(33, dtype=np.float32)[tokens].reshape(len(tokens), -1))
