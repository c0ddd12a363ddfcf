"""Baselines of a fine-tuned model: a frozen probe of the model it started from, and k-mers.

Both are linear models by scikit-learn with a penalty that is chosen on validation. The k-mers of a protein
are counts of three residues in a row. Those of a residue are the residues around it.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import PAD, VOCAB_SIZE, decode
from seqlm.proteins.finetune.probes import Examples, fit_probe
from seqlm.proteins.inference.engine import EMBEDDING, RESIDUE_EMBEDDINGS, Engine
from seqlm.proteins.model.pretrained import load_model
from seqlm.runs.run_file import RunFile
from seqlm.training.objective import Place
from seqlm.training.records import Split
from seqlm.training.whole_file import write_whole

from .labelled import SampledSplit
from .scores import scores
from .task_kinds import TASK_KINDS

FILE = "baselines.json"
MAX_PROTEINS: dict[Split, int] = {"train": 1000, "validation": 300, "test": 300}
"""Proteins of each split, drawn with a fixed seed."""
RESIDUE_SHARE = 0.15
"""Share of these proteins for a residue task, which has an example for each residue."""
K = 3
"""Residues of a k-mer."""
MAX_PARAMETERS = 1_000_000_000
"""Largest model that is probed: it must fit on one device beside nothing else."""
WINDOW = 7
"""Residues on either side of a residue."""


def write_baselines(config: RunFile, place: Place) -> Path:
    """Score the baselines of a run and write the scores to its folder.

    They are scored on the test split, or on the validation split if there is no test split.
    """
    assert config.task is not None
    share = RESIDUE_SHARE if TASK_KINDS[config.task.kind].per_residue else 1
    parts = []
    for name, most in MAX_PROTEINS.items():
        parts.append(SampledSplit(config.data.path, name, int(most * share)))
    scored = 2 if parts[2].proteins else 1
    schema = parts[0].schema
    features = {"k-mers": _kmers(parts)}
    if config.model.init_from:
        print("baselines: frozen probe and k-mers")
        model = load_model(config.model.init_from)
        if sum(parameter.numel() for parameter in model.parameters()) <= MAX_PARAMETERS:
            engine = Engine(
                model,
                device=place.here.device,
                dtype=place.dtype,
                max_residues=config.model.max_residues,
                kernels=config.train.kernels,
            )
            run = partial(
                engine.run, answer=RESIDUE_EMBEDDINGS if schema.task.per_residue else EMBEDDING
            )
            probed = [Examples(part.features(run), part.labels) for part in parts]
            features = {"frozen probe": probed, **features}
    found = {}
    for kind, (train, validation, test) in features.items():
        probe = fit_probe(schema, train, validation)
        examples = test if scored == 2 else validation
        found[kind] = scores(schema, examples.labels, probe.outputs(examples.features))
    document = {
        "split": list(MAX_PROTEINS)[scored],
        "train": len(parts[0].proteins),
        "proteins": len(parts[scored].proteins),
        "scores": found,
    }
    write_whole(config.run_dir / FILE, json.dumps(document, indent=1) + "\n")
    return config.run_dir / FILE


def _kmers(parts: list[SampledSplit]) -> list[Examples]:
    if parts[0].known is not None:
        return [Examples(part.features(windows), part.labels) for part in parts]
    features = kmer_counts([part.proteins for part in parts])
    return [Examples(counted, part.labels) for counted, part in zip(features, parts, strict=True)]


def kmer_counts(splits: Sequence[Sequence[npt.NDArray[np.uint8]]]) -> list[Any]:
    """Return the counts of the k-mers of each protein of several splits, as sparse matrices (N, k-mers).

    The k-mers are those of the first split.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    counts = CountVectorizer(analyzer="char", ngram_range=(K, K), lowercase=False)
    texts = [[decode(protein) for protein in split] for split in splits]
    counts.fit(texts[0])
    return [counts.transform(text) for text in texts]


def windows(proteins: list[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.float32]]:
    """Return the residues around each residue of each protein, one-hot.

    Shape of a protein: (length, (2 * ``WINDOW`` + 1) * ``VOCAB_SIZE``).
    """
    found = []
    for protein in proteins:
        padded = np.pad(protein, WINDOW, constant_values=PAD)
        around = np.lib.stride_tricks.sliding_window_view(padded, 2 * WINDOW + 1)
        one_hot = np.eye(VOCAB_SIZE, dtype=np.float32)[around]
        found.append(one_hot.reshape(len(protein), -1))
    return found
