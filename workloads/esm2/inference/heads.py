"""Meaning of a fine-tuned model's outputs, from its config.json."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from workloads.esm2.finetune.task_kinds import KIND_OF_PROBLEM, THRESHOLD, TaskKind
from workloads.esm2.packed_model import PackedModel, TokenClassifier
from workloads.inference import MASKED_LM, check_head

from .engine import PROTEIN_LOGITS, RESIDUE_LOGITS, Answer, Array


@dataclass(frozen=True)
class Head:
    kind: TaskKind
    names: tuple[str, ...]
    """Names of the outputs, in their order."""
    negative: str = ""
    """Label of a protein with none of the names; empty for several labels that do not exclude each other."""

    @staticmethod
    def of(model: PackedModel, name: str) -> "Head":
        """Return the head of a model called ``name``.

        Raises:
            ValueError: if the model has not been fine-tuned.
        """
        config: Any = model.config
        names = tuple(str(config.id2label[index]) for index in range(config.num_labels))
        check_head("predict", name, config.architectures or [MASKED_LM])
        problem = None if isinstance(model, TokenClassifier) else config.problem_type or ""
        if kind := KIND_OF_PROBLEM.get(problem):
            is_binary = len(names) == 1 and not (kind.measured or kind.one_of_many)
            negative = getattr(config, "negative_class", f"not {names[0]}") if is_binary else ""
            return Head(kind, names, negative)
        raise ValueError(
            f"{name}: config.json has problem_type {config.problem_type!r}; allowed are regression, "
            "multi_label_classification and single_label_classification"
        )

    @property
    def answer(self) -> Answer:
        """Kind of answer that the engine computes."""
        return RESIDUE_LOGITS if self.kind.per_residue else PROTEIN_LOGITS

    def labels(self, values: Array) -> list[str]:
        """Return the labels of a protein, or one per residue; none for a regression."""
        if self.kind.measured:
            return []
        if not self.kind.one_of_many:
            likely = [name for name, value in zip(self.names, values, strict=True) if value >= THRESHOLD]
            return likely or [self.negative] * bool(self.negative)
        return [self.names[index] for index in np.atleast_1d(values.argmax(axis=-1)).tolist()]
