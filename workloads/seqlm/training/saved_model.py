"""Functions that load, gather and write the weights of models."""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .checksums import new_folder
from .layered_model import LayeredModel

Model = TypeVar("Model", bound=LayeredModel)


def assigned(model: Model, weights: dict[str, Tensor]) -> Model:
    """Give a model made on the meta device its weights."""
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.make_buffers(torch.device("cpu"))
    return model


def full_weights(model: nn.Module, *, trained_only: bool = False) -> dict[str, Tensor]:
    """Unsharded weights on the CPU of the first process, empty elsewhere. Every process calls this."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=trained_only)
    state = get_model_state_dict(model, options=options)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}


def save_model(
    folder: Path,
    config: PretrainedConfig,
    weights: dict[str, Tensor],
    kind: type[PreTrainedModel],
    tokens: PreTrainedTokenizerBase,
) -> None:
    """Write safetensors, configuration and tokenizer so that transformers loads them without a network.

    The folder appears whole or not at all; one that is there is replaced. It holds checksums of its files.
    """
    with torch.device("meta"):
        plain = kind(config)
    with new_folder(folder) as partial:
        plain.save_pretrained(partial, state_dict=weights)
        tokens.save_pretrained(partial)


def fingerprint(weights: Mapping[str, Tensor], settings: str = "") -> str:
    """Return a hash of settings and weights: the same numbers give the same results.

    SHA-256 hashes about 1 GB/s on a core of a Zen 3. It releases the interpreter's lock, hence the threads.
    """

    def of_tensor(name: str) -> bytes:
        flat = weights[name].detach().cpu().contiguous().view(-1).view(torch.uint8)
        return name.encode() + hashlib.sha256(flat.numpy().data).digest()

    with ThreadPoolExecutor() as threads:
        parts = [settings.encode(), *threads.map(of_tensor, sorted(weights))]
    return hashlib.sha256(b"".join(parts)).hexdigest()
