"""Kinds of tasks: one object each, with everything in which it differs from the others.

numpy and torch are imported where they are used, because run files read the names of the kinds.

Shapes: N proteins (residues of a residue task), C columns of labels, L outputs of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqlm.training.data.manifest import IGNORED

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    Array = npt.NDArray[np.float32]

THRESHOLD = 0.5
"""Smallest probability at which a protein has a label, for labels that do not exclude each other."""


@dataclass(frozen=True)
class TaskKind:
    """Labels, head, loss, scores and columns of a task."""

    name: str
    loss: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    """Takes outputs (N, L), targets and class weights, (L,) or None, and returns the fp32 losses (N, C).

    With ``one_of_many``, targets are numbers of classes (N,) or ``IGNORED``, and it returns the sum."""
    values: Callable[[Array], Array]
    """Converts logits (..., L) to probabilities, or to measurements."""
    headlines: tuple[str, ...]
    """Scores that judge a model, the most important one first."""
    problem_type: str | None = None
    """transformers' name for the loss of a sequence classifier; None: a token classifier."""
    per_residue: bool = False
    """Whether each residue has a label, rather than the protein."""
    one_of_many: bool = False
    """Whether an example has exactly one of several classes. Its label is the number of the class."""
    two_classes: bool = False
    """Whether there is one label, 0 or 1. The classes are then (negative, positive)."""
    measured: bool = False
    """Whether labels are measurements. They are learned with mean 0 and deviation 1."""

    @property
    def several_columns(self) -> bool:
        """Whether there may be several label columns, which then name the outputs."""
        return not (self.one_of_many or self.two_classes)


def _cross_entropy(outputs: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
    import torch.nn.functional as F

    return F.cross_entropy(outputs, targets, weight, ignore_index=IGNORED, reduction="sum")


def _binary_cross_entropy(outputs: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
    import torch.nn.functional as F

    return F.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weight, reduction="none")


def _sigmoid(logits: Array) -> Array:
    import numpy as np

    # The form without overflow on either side.
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits)), dtype=np.float32)


def _softmax(logits: Array) -> Array:
    import numpy as np

    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True), dtype=np.float32)


_CLASS_SCORES = ("accuracy", "mcc", "f1", "auroc")
TASK_KINDS: Mapping[str, TaskKind] = {
    kind.name: kind
    for kind in (
        TaskKind(
            name="binary",
            loss=_binary_cross_entropy,
            values=_sigmoid,
            headlines=_CLASS_SCORES,
            problem_type="multi_label_classification",  # of one label
            two_classes=True,
        ),
        TaskKind(
            name="multiclass",
            loss=_cross_entropy,
            values=_softmax,
            headlines=_CLASS_SCORES,
            problem_type="single_label_classification",
            one_of_many=True,
        ),
        TaskKind(
            name="multilabel",
            loss=_binary_cross_entropy,
            values=_sigmoid,
            headlines=("jaccard", "f1", "mcc", "auroc"),
            problem_type="multi_label_classification",
        ),
        TaskKind(
            name="regression",
            loss=lambda outputs, targets, weight: (outputs - targets) ** 2,
            values=lambda values: values,
            headlines=("spearman", "pearson", "rmse", "r2"),
            problem_type="regression",
            measured=True,
        ),
        TaskKind(
            name="residue",
            loss=_cross_entropy,
            values=_softmax,
            headlines=_CLASS_SCORES,
            per_residue=True,
            one_of_many=True,
        ),
    )
}
"""Values of ``task.kind``."""

KIND_OF_PROBLEM: Mapping[str | None, TaskKind] = {
    kind.problem_type: kind for kind in TASK_KINDS.values()
}
"""Kind of a saved model by its problem type. A binary model is a multilabel one with one label."""
