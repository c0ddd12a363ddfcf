"""Number of a run's parameters, and of those that it trains.

The counts follow the modules of transformers' models (``facts.py`` of each family).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from seqlm.proteins.families.table import MODEL_FAMILIES, saved_config
from seqlm.proteins.model.shape import ModelShape
from seqlm.runs.run_file import RunFile


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

    ``init_from`` may be an existing folder, the hub id of a published model, or a future folder whose name
    contains such an id.

    Raises:
        ValueError: if the shape is unknown without a request to the hub.
    """
    if config.chat is not None:
        raise ValueError(
            "chat: got a run of a causal language model; only protein language models can be planned. "
            "docs/causal-lm.md has the calculation for 14 billion parameters"
        )
    start = config.model.init_from
    family = MODEL_FAMILIES[config.model.family]
    if start is None:
        return family.published_shape(config.model.size)
    if settings := saved_config(Path(start)):
        return family.shape_of_config(settings)
    if match := re.search(family.published_name, start):
        return family.published_shape(match[1])
    raise ValueError(
        f"model.init_from: got {start}, whose size is unknown; set a folder with a config.json, or the hub id"
        " of a published model, as facebook/esm2_t6_8M_UR50D or biohub/ESMC-300M"
    )


def parameters_of(config: RunFile, shape: ModelShape) -> Parameters:
    """Count the parameters of pre-training, full fine-tuning, or fine-tuning with adapters."""
    hidden = shape.hidden
    layers = shape.layers
    encoder = shape.embedding + layers * shape.layer_parameters + shape.last_norm
    if config.task is None:
        return Parameters(encoder + shape.language_head, shape.contact_head, 0)
    head = hidden**2 + hidden  # a classifier's dense layer; its outputs are a few rows
    if config.lora is None:
        return Parameters(encoder + head, shape.contact_head, 0)
    matrices = layers * (shape.layer_matrices + shape.matrix_biases)  # which are cast with them
    trained = head + layers * shape.adapter_parameters(config.lora.rank, config.lora.targets)
    return Parameters(trained, encoder - matrices + shape.contact_head, matrices)
