"""Number of a run's parameters, and of those that it trains.

The counts follow the modules of transformers' ESM. A layer has four matrices of hidden x hidden and two of
hidden x 4 hidden, with biases and two layer norms.
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
        """Number of elements in a layer's matrices."""
        return 12 * self.hidden**2

    @property
    def layer_parameters(self) -> int:
        """Number of parameters per layer: matrices, 9 hidden for biases, and 4 hidden for two layer norms."""
        return self.layer_matrices + 13 * self.hidden

    @property
    def embedding(self) -> int:
        return VOCAB_SIZE * self.hidden

    @property
    def language_head(self) -> int:
        """Parameters of the dense layer, layer norm and bias; the decoder's matrix is the embedding."""
        return self.hidden**2 + 3 * self.hidden + VOCAB_SIZE

    @property
    def contact_head(self) -> int:
        """Parameters of the contact head, which every ESM-2 has and which is never trained here."""
        return self.layers * self.heads + 1


@dataclass(frozen=True)
class Parameters:
    trained: int
    frozen: int
    """Parameters in fp32 without gradients."""
    frozen_matrices: int
    """Parameters of the layers that LoRA freezes, in the type of the arithmetic or in 4 bits."""

    @property
    def total(self) -> int:
        return self.trained + self.frozen + self.frozen_matrices


def shape_of(config: RunFile) -> ModelShape:
    """Return the shape from ``model.size`` or ``model.init_from``.

    ``init_from`` may be an existing folder, the hub id of one of Meta's models, or a future folder whose name
    contains such an id.

    Raises:
        ValueError: if the shape is unknown without a request to the hub.
    """
    if config.chat is not None:
        raise ValueError(
            "chat: got a run of a causal language model; only memory and speed of ESM-2 can be planned. "
            "docs/causal-lm.md has the calculation for 14 billion parameters"
        )
    start = config.model.init_from
    if start is None:
        return ModelShape(*SHAPES[config.model.size])
    file = Path(start) / "config.json"
    if not file.exists():
        if match := PUBLISHED_NAME.search(start):
            return ModelShape(*SHAPES[match[1]])
        raise ValueError(
            f"model.init_from: got {start}, whose size is unknown; set a folder with a config.json, or one"
            " of facebook/esm2_t..._UR50D"
        )
    settings = json.loads(file.read_text())
    return ModelShape(settings["num_hidden_layers"], settings["hidden_size"], settings["num_attention_heads"])


def parameters_of(config: RunFile, shape: ModelShape) -> Parameters:
    """Count the parameters of pre-training, full fine-tuning, or fine-tuning with adapters."""
    hidden, layers = shape.hidden, shape.layers
    encoder = shape.embedding + layers * shape.layer_parameters + 2 * hidden  # last layer norm
    if config.task is None:
        return Parameters(encoder + shape.language_head, shape.contact_head, 0)
    head = hidden**2 + hidden  # a classifier's dense layer; its outputs are a few rows
    if config.lora is None:
        return Parameters(encoder + head, shape.contact_head, 0)
    matrices = layers * (shape.layer_matrices + 9 * hidden)  # biases are cast with them
    trained = head + layers * _adapter_parameters(config.lora, hidden)
    return Parameters(trained, encoder - matrices + shape.contact_head, matrices)


def _adapter_parameters(lora: LoraConfig, hidden: int) -> int:
    """Return the parameters of a layer's adapters: rank x (inputs + outputs) for each target."""
    wide = {"intermediate", "output"}
    return sum(lora.rank * (5 if target in wide else 2) * hidden for target in lora.targets)
