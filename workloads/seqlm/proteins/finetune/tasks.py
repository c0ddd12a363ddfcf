"""Model and loss of a task: transformers' heads, and the losses that transformers has for them.

Shapes: N proteins (residues of a residue task), L outputs of the model.
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

HEAD_WEIGHT = "classifier.out_proj.weight"
HEAD_BIAS = "classifier.out_proj.bias"
"""transformers' names of the last layer of a sequence classifier."""


def task_class(config: PretrainedConfig, kind: TaskKind) -> ModelClass:
    """Return the classes of a model with the head for a task."""
    family = of_config(config)
    return family.token_classifier if kind.per_residue else family.sequence_classifier


def task_config(base: PretrainedConfig, schema: LabelSchema) -> PretrainedConfig:
    """Return the configuration of the model with the task's head: the base's, with names for the outputs."""
    names = schema.output_names
    settings = base.to_dict()
    if schema.task.two_classes:
        # The one output of a binary task has the name of the positive class.
        names = schema.classes[1:]
        settings["negative_class"] = schema.classes[0]
    settings |= {
        "architectures": [task_class(base, schema.task).plain.__name__],
        "problem_type": schema.task.problem_type,
        "id2label": dict(enumerate(names)),
        "label2id": {name: place for place, name in enumerate(names)},
    }
    return type(base)(**settings)


def new_head(config: PretrainedConfig, kind: TaskKind, seed: int) -> dict[str, Tensor]:
    """Return random weights of the head by transformers' own initialisation."""
    single_layer = type(config)(**{**config.to_dict(), "num_hidden_layers": 1})
    # A generator state of its own: a library that draws numbers earlier must not change the weights.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = task_class(config, kind).plain(single_layer)
    encoder = of_config(config).encoder
    return {
        name: value for name, value in model.state_dict().items() if not name.startswith(encoder)
    }


class TaskLoss:
    """Loss of a task, with class weights and units from the training split.

    Args:
        split: training split.
        balanced: whether each class has the inverse of its frequency there as its weight.
    """

    def __init__(self, split: LabelledSplit, *, balanced: bool) -> None:
        self.kind = split.schema.task
        outputs = split.schema.num_outputs
        self.shift = np.zeros(outputs, np.float32)
        self.scale = np.ones(outputs, np.float32)
        if self.kind.measured:
            labels = split.labels(np.arange(split.num_units)).astype(np.float64)
            deviation = np.nanstd(labels, axis=0)
            self.shift = np.nanmean(labels, axis=0).astype(np.float32)
            self.scale = np.where(deviation > 0, deviation, 1.0).astype(np.float32)
        self._weight = torch.from_numpy(_class_weights(split)) if balanced else None

    def num_targets(self, targets: Tensor) -> Tensor:
        """Return the number of labels, () int64."""
        return (targets != IGNORED).sum() if self.kind.per_residue else targets.isfinite().sum()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses over all labels, () fp32.

        Args:
            outputs: (N, L) outputs of the model.
            targets: (N, columns) labels in the form of ``LabelledPack``; (N,) for a residue task.
        """
        weight = (
            None if self._weight is None else self._weight.to(outputs.device, non_blocking=True)
        )
        if self.kind.one_of_many:
            if not self.kind.per_residue:
                targets = targets[:, 0].nan_to_num(nan=IGNORED).long()
            return self.kind.loss(outputs, targets, weight)
        is_there = targets.isfinite()
        targets = targets.nan_to_num(nan=0.0)
        if self.kind.measured:
            targets = (targets - _like(self.shift, outputs)) / _like(self.scale, outputs)
        return self.kind.loss(outputs, targets, weight).masked_fill(~is_there, 0.0).sum()

    def in_units(self, outputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return outputs in the units of the labels. A regression learns with mean 0 and deviation 1."""
        return outputs * self.scale + self.shift

    def head_in_units(self, weights: dict[str, Tensor], *, undo: bool = False) -> dict[str, Tensor]:
        """Put the units into the head's last layer, so that the written model needs no conversion.

        With ``undo``, take them out of a model that was written with them.
        """
        if not self.kind.measured:
            return weights
        weight = weights[HEAD_WEIGHT]
        bias = weights[HEAD_BIAS]
        shift = _like(self.shift, weight)
        scale = _like(self.scale, weight)
        if undo:
            return weights | {
                HEAD_WEIGHT: weight / scale[:, None],
                HEAD_BIAS: (bias - shift) / scale,
            }
        return weights | {HEAD_WEIGHT: weight * scale[:, None], HEAD_BIAS: bias * scale + shift}


def _class_weights(split: LabelledSplit) -> npt.NDArray[np.float32]:
    """Return the weights of the classes.

    If classes exclude each other, a weight is (examples / classes) / examples of the class, with a mean of 1
    over the split. Otherwise it is negatives / positives of a label, as the weight of the positives.
    """
    counts = split.class_counts().astype(np.float64)
    if split.schema.task.one_of_many:
        num_classes = counts.shape[1]
        examples = np.maximum(counts[0], 1)
        return (counts.sum() / (num_classes * examples)).astype(np.float32)
    negatives = np.maximum(counts[:, 0], 1)
    positives = np.maximum(counts[:, 1], 1)
    return (negatives / positives).astype(np.float32)


def _like(values: npt.NDArray[Any], tensor: Tensor) -> Tensor:
    """Return an array as a tensor on the device of another one."""
    return torch.from_numpy(values).to(tensor.device, non_blocking=True)
