"""A task's model and loss: transformers' heads, the losses that transformers has for them.

Shapes: N proteins (of a residue task residues), L outputs of the model.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PretrainedConfig

from seqlm.proteins.model.architecture import ModelClass
from seqlm.proteins.model.pretrained import of_config
from seqlm.training.data.manifest import IGNORED

from .labelled import LabelledSplit
from .labels import LabelSchema
from .task_kinds import TaskKind

HEAD_WEIGHT, HEAD_BIAS = (f"classifier.out_proj.{part}" for part in ("weight", "bias"))
"""transformers' names of the last layer of a sequence classifier."""


def task_class(config: PretrainedConfig, kind: TaskKind) -> ModelClass:
    """Return the classes of a model with the head for a task."""
    family = of_config(config)
    return family.token_classifier if kind.per_residue else family.sequence_classifier


def task_config(base: PretrainedConfig, schema: LabelSchema) -> PretrainedConfig:
    """Shape of the model with the task's head: the base's, with names for the outputs."""
    names = schema.classes[1:] if schema.task.two_classes else schema.output_names
    return type(base)(
        **{
            **base.to_dict(),
            "architectures": [task_class(base, schema.task).plain.__name__],
            "problem_type": schema.task.problem_type,
            "id2label": dict(enumerate(names)),
            "label2id": {name: place for place, name in enumerate(names)},
            # The one output of a binary task has the name of the positive class.
            **({"negative_class": schema.classes[0]} if schema.task.two_classes else {}),
        }
    )


def new_head(config: PretrainedConfig, kind: TaskKind, seed: int) -> dict[str, Tensor]:
    """Random weights of the head by transformers' own initialisation."""
    single_layer = type(config)(**{**config.to_dict(), "num_hidden_layers": 1})
    # A generator state of its own: a library that draws numbers earlier must not change the weights.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task_class(config, kind).plain(single_layer)
    encoder = of_config(config).encoder
    return {name: value for name, value in model.state_dict().items() if not name.startswith(encoder)}


class TaskLoss:
    """Loss of a task, with the weights and units that the training split gives.

    Args:
        split: what is trained on.
        balanced: whether each class weighs as the inverse of its frequency there.
    """

    def __init__(self, split: LabelledSplit, *, balanced: bool) -> None:
        self.kind = split.schema.task
        outputs = split.schema.num_outputs
        self.shift, self.scale = np.zeros(outputs, np.float32), np.ones(outputs, np.float32)
        if self.kind.measured:
            labels = split.labels(np.arange(split.num_units)).astype(np.float64)
            deviation = np.nanstd(labels, axis=0)
            self.shift = np.nanmean(labels, axis=0).astype(np.float32)
            self.scale = np.where(deviation > 0, deviation, 1.0).astype(np.float32)
        self._weight = torch.from_numpy(_class_weights(split)) if balanced else None

    def num_targets(self, targets: Tensor) -> Tensor:
        """() int64 labels that are there."""
        return (targets != IGNORED).sum() if self.kind.per_residue else targets.isfinite().sum()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """() fp32 sum over all labels that are there.

        Args:
            outputs: (N, L) of the model.
            targets: (N, columns) as ``LabelledPack`` has them, of a residue task (N,).
        """
        weight = None if self._weight is None else self._weight.to(outputs.device, non_blocking=True)
        if self.kind.one_of_many:
            if not self.kind.per_residue:
                targets = targets[:, 0].nan_to_num(nan=IGNORED).long()
            return self.kind.loss(outputs, targets, weight)
        is_there = targets.isfinite()
        targets = targets.nan_to_num(nan=0.0)
        if self.kind.measured:
            shift, scale = (_like(values, outputs) for values in (self.shift, self.scale))
            targets = (targets - shift) / scale
        return self.kind.loss(outputs, targets, weight).masked_fill(~is_there, 0.0).sum()

    def in_units(self, outputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Outputs as the labels are measured: a regression learns them with mean 0 and deviation 1."""
        return outputs * self.scale + self.shift

    def head_in_units(self, weights: dict[str, Tensor], *, undo: bool = False) -> dict[str, Tensor]:
        """Put the units into the head's last layer, so that the written model needs no conversion.

        With ``undo``, take them out of a model that was written so.
        """
        if not self.kind.measured:
            return weights
        weight, bias = weights[HEAD_WEIGHT], weights[HEAD_BIAS]
        shift, scale = (_like(values, weight) for values in (self.shift, self.scale))
        if undo:
            return weights | {HEAD_WEIGHT: weight / scale[:, None], HEAD_BIAS: (bias - shift) / scale}
        return weights | {HEAD_WEIGHT: weight * scale[:, None], HEAD_BIAS: bias * scale + shift}


def _class_weights(split: LabelledSplit) -> npt.NDArray[np.float32]:
    """Return the weights of the classes.

    One class out of many has all / (classes * those of the class), which is 1 in the mean over the split. A
    label that is present or absent has negatives / positives, as a weight of the positives.
    """
    counts = split.class_counts().astype(np.float64)
    if split.schema.task.one_of_many:
        return (counts.sum() / (counts.shape[1] * np.maximum(counts[0], 1))).astype(np.float32)
    return (np.maximum(counts[:, 0], 1) / np.maximum(counts[:, 1], 1)).astype(np.float32)


def _like(values: npt.NDArray[Any], tensor: Tensor) -> Tensor:
    return torch.from_numpy(values).to(tensor.device, non_blocking=True)
