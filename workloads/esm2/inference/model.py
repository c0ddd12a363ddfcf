"""A model to use: whatever head it has, read from a folder or the hub."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    EsmForMaskedLM,
    EsmForSequenceClassification,
    EsmForTokenClassification,
    EsmPreTrainedModel,
)
from transformers.utils.logging import disable_progress_bar

from ..checksums import CHECKPOINT_FILE, verified
from ..config import ModelConfig
from ..model import PackedEsm, PackedModel, PackedSequenceClassifier, PackedTokenClassifier
from ..pretrained import assigned, starting_config, starting_weights
from ..processes import Processes

HEADS: dict[str, tuple[type[EsmPreTrainedModel], type[PackedModel]]] = {
    "EsmForMaskedLM": (EsmForMaskedLM, PackedEsm),
    "EsmForSequenceClassification": (EsmForSequenceClassification, PackedSequenceClassifier),
    "EsmForTokenClassification": (EsmForTokenClassification, PackedTokenClassifier),
}
"""Architectures by their names in config.json, in transformers and here."""


def load_model(name: str, here: Processes | None = None) -> PackedModel:
    """A model on the CPU, in fp32, that computes no gradients; its head stays in fp32.

    Args:
        name: a folder that transformers wrote, a checkpoint of ours, or a hub id.
        here: this process, if all of a job's processes load the model.

    Raises:
        ValueError: if there is none, if it is not ESM-2, if it is damaged, or if weights are missing in it.
    """
    disable_progress_bar()  # of no use once a process, or in a log
    with verified(name, here):
        config = starting_config(ModelConfig(init_from=name))
        architecture = (config.architectures or ["EsmForMaskedLM"])[0]
        if architecture not in HEADS:
            raise ValueError(f"{name}: a model of the kind {architecture}; allowed are {', '.join(HEADS)}")
        theirs, ours = HEADS[architecture]
        if config.problem_type == "regression" and (Path(name) / CHECKPOINT_FILE).exists():
            raise ValueError(
                f"{name} is a checkpoint of a regression, which does not tell the units of its values; give "
                "the model folder that the run has left, or score it with make evaluate"
            )
        weights = starting_weights(ModelConfig(init_from=name), 0, theirs)
        with torch.device("meta"):
            empty = ours(config)
        empty.exact_head = True
        return assigned(empty, weights).requires_grad_(False).eval()
