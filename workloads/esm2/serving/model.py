"""A model's folder, as what the server asks: answers for proteins."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ..alphabet import encode
from ..config import TrainConfig
from ..inference.engine import EMBEDDING, TOKENS_PER_PACK, Array, Engine
from ..inference.heads import Head
from ..inference.model import load_model
from ..model import PackedEsm
from ..precision import select_precision
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
        """Answers in the order of the proteins.

        Raises:
            FloatingPointError: if they are infinite or not numbers, as after a training that diverged.
        """
        found = self._engine.run(proteins, self._head.answer if self._head else EMBEDDING)
        if not all(np.isfinite(numbers).all() for numbers in found):
            raise FloatingPointError("the model's answers are not finite")
        return [self._answer(numbers) for numbers in found]

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
    _check_files(folder)
    model = load_model(str(folder))
    head = None if isinstance(model, PackedEsm) else Head.of(model, str(folder))
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    engine = Engine(
        model,
        device=device,
        dtype=select_precision(TrainConfig(), device).dtype,
        tokens_per_pack=settings.tokens_per_pack,
        max_residues=settings.max_residues,
    )
    served = ServedModel(engine, head)
    lengths = [min(length, settings.max_residues) for length in WARM_RESIDUES]
    try:
        served.run([encode("A" * length) for length in lengths])
    except FloatingPointError as error:
        raise ValueError(f"--model: {folder}: {error}; give another checkpoint of its training") from None
    return served


def _check_files(folder: Path) -> None:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise ValueError(
            f"--model: user {os.geteuid()} cannot list {folder}: {error.strerror}; give the model folder of "
            "a run, readable for all (chmod a+rX)"
        ) from None
    if "config.json" not in names:
        raise ValueError(
            f"--model: {folder} holds no config.json, it has {', '.join(names[:10]) or 'nothing'}; give the "
            "model folder of a run, or put its files, not the folder, into the archive"
        )
    unreadable = [name for name in names if not os.access(folder / name, os.R_OK)]
    if unreadable:
        raise ValueError(
            f"--model: user {os.geteuid()} may not read {', '.join(unreadable)} in {folder}; pack the files "
            "readable for all (chmod a+r)"
        )
