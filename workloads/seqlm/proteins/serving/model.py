"""Model that the server loads from a folder, and its answers for proteins."""

from collections.abc import Sequence
from pathlib import Path

import torch

from seqlm.proteins.finetune.prediction_file import residue_separator
from seqlm.proteins.inference.engine import EMBEDDING, Array, Engine
from seqlm.proteins.inference.predict import Head
from seqlm.proteins.model.packed_model import MaskedLanguageModel
from seqlm.proteins.model.pretrained import load_model
from seqlm.training.config import TrainConfig
from seqlm.training.hardware import compiles
from seqlm.training.precision import select_precision

from .proteins import Answer, ResidueLabels, Tokens
from .settings import ServeSettings

MAX_NAMES_SHOWN = 10
"""Largest number of the head's names in the server's first message."""


class ServedModel:
    """Model that answers with predictions, or with mean embeddings if it has no task.

    The server calls ``warm_up`` once and then ``run``, both from one thread, which is not the server's own.
    """

    def __init__(self, engine: Engine, head: Head | None) -> None:
        self._engine = engine
        self._head = head
        self._wanted = head.answer if head else EMBEDDING
        self.tokens_per_pack = engine.tokens_per_pack
        """Default number of tokens per pack for the model's device."""
        self.answers = "mean embeddings"
        """Description of the answers, for the user."""
        if head:
            self.answers = f"{head.kind.name} of {', '.join(head.names[:MAX_NAMES_SHOWN])}"

    def warm_up(self) -> None:
        """Compute each shape of a pack once. On a GPU this compiles the layers, which takes minutes.

        Raises:
            NotFiniteError: if an answer is infinite or not a number, as after a diverged training.
        """
        self._engine.warm_up(self._wanted)

    def run(self, proteins: Sequence[Tokens]) -> list[Answer]:
        """Return the answers in the order of the proteins.

        Raises:
            NotFiniteError: if an answer is infinite or not a number, as after a diverged training.
        """
        found = self._engine.run(proteins, self._wanted)
        return [self._answer(numbers) for numbers in found]

    def _answer(self, found: Array) -> Answer:
        head = self._head
        if head is None:
            return {"embedding": tuple(found.tolist())}
        values = head.kind.values(found)
        if head.kind.measured:
            return {"values": dict(zip(head.names, values.tolist(), strict=True))}
        labels = head.labels(values)
        if head.kind.per_residue:
            each = ResidueLabels(labels)
            each.separator = residue_separator(head.names)
            return {"labels": each, "probabilities": values.max(axis=-1).tolist()}
        probabilities = dict(zip(head.names, values.tolist(), strict=True))
        if head.kind.one_of_many:
            return {"label": labels[0], "probabilities": probabilities}
        return {"labels": labels, "probabilities": probabilities}


def open_model(folder: Path, settings: ServeSettings) -> ServedModel:
    """Load the model of a folder onto the first GPU, or the CPU.

    Raises:
        ValueError: if the model is damaged, or its family is unknown.
    """
    model = load_model(str(folder))
    head = None if isinstance(model, MaskedLanguageModel) else Head.of(model, str(folder))
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    train = TrainConfig()
    engine = Engine(
        model,
        device=device,
        dtype=select_precision(train, device).dtype,
        tokens_per_pack=settings.tokens_per_pack,
        max_residues=settings.max_residues,
        compile_from=0 if compiles(train, device) else None,
        kernels=settings.kernels,
    )
    return ServedModel(engine, head)
