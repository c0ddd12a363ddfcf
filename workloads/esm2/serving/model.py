"""A model's folder, as what the server asks: answers for proteins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from ..alphabet import encode
from ..config import TrainConfig
from ..hardware import compute_dtype
from ..inference.engine import EMBEDDING, TOKENS_PER_PACK, Array, Engine
from ..inference.heads import Head
from ..inference.model import load_model
from ..model import PackedEsm
from .answers import Answer
from .batching import Tokens
from .settings import ServeSettings

WARM_RESIDUES = (30, 300)
"""Lengths that go through the model before the first request: the first products of a process are slow."""


class ServedModel:
    """A fine-tuned model's predictions, or mean embeddings of one without a task."""

    def __init__(self, engine: Engine, head: Head | None) -> None:
        self._engine, self._head = engine, head
        self.tokens_per_pack = TOKENS_PER_PACK[engine.device.type]

    def run(self, proteins: Sequence[Tokens]) -> list[Answer]:
        wanted = self._head.answer if self._head else EMBEDDING
        return [self._answer(found) for found in self._engine.run(proteins, wanted)]

    def _answer(self, found: Array) -> Answer:
        if self._head is None:
            return {"embedding": tuple(found.tolist())}
        values, names = self._head.values(found), self._head.names
        if self._head.kind == "regression":
            return {"values": dict(zip(names, values.tolist(), strict=True))}
        labels = self._head.labels(values)
        if self._head.kind == "residue":
            return {"labels": labels, "probabilities": values.max(axis=-1).tolist()}
        probabilities = dict(zip(names, values.tolist(), strict=True))
        if self._head.kind == "multilabel":
            return {"labels": labels, "probabilities": probabilities}
        return {"label": labels[0], "probabilities": probabilities}


def open_model(folder: Path, settings: ServeSettings) -> ServedModel:
    """Load the model of a folder onto the first GPU, or the CPU, and let it compute once.

    Raises:
        ValueError: saying what the folder lacks.
    """
    config = folder / "config.json"
    if not config.is_file():
        there = sorted(path.name for path in folder.iterdir())[:10] if folder.is_dir() else None
        has = f"it has {', '.join(there) or 'nothing'}" if there is not None else "it is not there"
        raise ValueError(
            f"--model: {folder} holds no config.json, {has}; give the model folder of a run, or put its "
            "files, not the folder, into the archive"
        )
    unreadable = [path.name for path in folder.iterdir() if not os.access(path, os.R_OK)]
    if unreadable:
        raise ValueError(
            f"--model: user {os.getuid()} may not read {', '.join(unreadable)} in {folder}; pack the files "
            "readable for all (chmod a+r)"
        )
    model = load_model(str(folder))
    head = None if isinstance(model, PackedEsm) else Head.of(model, str(folder))
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    engine = Engine(
        model,
        device=device,
        dtype=compute_dtype(TrainConfig(), device),
        tokens_per_pack=settings.tokens_per_pack,
        max_residues=settings.max_residues,
    )
    served = ServedModel(engine, head)
    lengths = [min(length, settings.max_residues) for length in WARM_RESIDUES]
    served.run([encode("A" * length) for length in lengths])
    return served
