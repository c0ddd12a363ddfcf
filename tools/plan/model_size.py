"""How many parameters a run has, and how many of them it trains.

Counted from the modules of transformers' ESM: a layer has four matrices of hidden x hidden and two of hidden
x 4 hidden, with biases and two layer norms.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from workloads.esm2.alphabet import VOCAB_SIZE
from workloads.esm2.shapes import SHAPES
from workloads.run_file import RunFile
from workloads.training.config import LoraConfig

PUBLISHED_NAME = re.compile(r"\besm2_t\d+_(\d+[MB])_UR50D")


@dataclass(frozen=True)
class ModelShape:
    layers: int
    hidden: int
    heads: int

    @property
    def layer_matrices(self) -> int:
        """Elements of the matrices of a layer."""
        return 12 * self.hidden**2

    @property
    def layer_parameters(self) -> int:
        """Matrices, 9 hidden of their biases, and 4 hidden of two layer norms."""
        return self.layer_matrices + 13 * self.hidden

    @property
    def embedding(self) -> int:
        return VOCAB_SIZE * self.hidden

    @property
    def language_head(self) -> int:
        """Dense, layer norm and bias; the decoder's matrix is the embedding."""
        return self.hidden**2 + 3 * self.hidden + VOCAB_SIZE

    @property
    def contact_head(self) -> int:
        """Part of every ESM-2, never trained here."""
        return self.layers * self.heads + 1


@dataclass(frozen=True)
class Parameters:
    trained: int
    frozen: int
    """Kept in fp32 without gradients."""
    frozen_matrices: int
    """Of the layers, kept in the type of the arithmetic or in 4 bits: LoRA's."""

    @property
    def total(self) -> int:
        return self.trained + self.frozen + self.frozen_matrices


def shape_of(config: RunFile) -> ModelShape:
    """From ``model.size``, or from what ``model.init_from`` names: a folder here, or one of Meta's models, by
    its hub id or in the name of a folder that is to be.

    Raises:
        ValueError: if that cannot be told without asking the hub.
    """
    if config.chat is not None:
        raise ValueError(
            "chat: got a run of a causal language model; memory and speed of ESM-2 alone are reckoned here. "
            "docs/causal-lm.md has the arithmetic for 14 billion parameters"
        )
    start = config.model.init_from
    if start is None:
        return ModelShape(*SHAPES[config.model.size])
    file = Path(start) / "config.json"
    if not file.exists():
        if match := PUBLISHED_NAME.search(start):
            return ModelShape(*SHAPES[match[1]])
        raise ValueError(
            f"model.init_from: got {start}, whose size is not known here; a folder with a config.json, or one"
            " of facebook/esm2_t..._UR50D can be planned for"
        )
    settings = json.loads(file.read_text())
    return ModelShape(settings["num_hidden_layers"], settings["hidden_size"], settings["num_attention_heads"])


def parameters_of(config: RunFile, shape: ModelShape) -> Parameters:
    """Of pre-training, of fine-tuning as a whole, or with adapters."""
    hidden, layers = shape.hidden, shape.layers
    encoder = shape.embedding + layers * shape.layer_parameters + 2 * hidden  # the last layer norm
    if config.task is None:
        return Parameters(encoder + shape.language_head, shape.contact_head, 0)
    head = hidden**2 + hidden  # of a classifier; its outputs are a few rows
    if config.lora is None:
        return Parameters(encoder + head, shape.contact_head, 0)
    matrices = layers * (shape.layer_matrices + 9 * hidden)  # biases are cast with them
    trained = head + layers * _adapter_parameters(config.lora, hidden)
    return Parameters(trained, encoder - matrices + shape.contact_head, matrices)


def _adapter_parameters(lora: LoraConfig, hidden: int) -> int:
    """Of a layer: rank x (inputs + outputs) for each target."""
    wide = {"intermediate", "output"}
    return sum(lora.rank * (5 if target in wide else 2) * hidden for target in lora.targets)
