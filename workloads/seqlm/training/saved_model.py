"""Weights of models: loading, gathering, writing and hashing."""

import hashlib
import itertools
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from .checksums import new_folder
from .data.source_file import note_once
from .layered_model import LayeredModel
from .strict_yaml import shown_first

Model = TypeVar("Model", bound=LayeredModel)


def assigned(model: Model, weights: dict[str, Tensor]) -> Model:
    """Return a model that was created on the meta device with its weights on the CPU."""
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.make_buffers(torch.device("cpu"))
    return model


def load_plain(kind: Any, name: str | Path, **options: Any) -> tuple[Any, list[str]]:
    """Load a model of transformers, whose weights do not change with its files.

    Weights that the model does not have are named in a note. It takes the place of transformers' own report,
    which prints the names as they are.

    Args:
        kind: class of transformers.
        name: folder or hub id.
        options: further arguments of ``from_pretrained``.

    Returns:
        The model, and the names of its weights that are missing there.
    """
    report = logging.getLogger("transformers.modeling_utils")
    # A level of its own would make transformers print the layers that are not sharded.
    report.addFilter(_is_error)
    try:
        model, info = kind.from_pretrained(
            name, output_loading_info=True, trust_remote_code=False, **options
        )
    finally:
        report.removeFilter(_is_error)
    keep_in_memory(model)
    unused = sorted(info["unexpected_keys"])
    if unused:
        note_once(f"{name}: the model does not use {len(unused)} weights: {shown_first(unused)}")
    return model, sorted(info["missing_keys"])


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def keep_in_memory(model: nn.Module) -> None:
    """Copy the weights of a model that transformers has loaded, one tensor at a time.

    They are memory-mapped otherwise: the model would compute with the bytes that are written into its
    file later, and the process would end if the file were cut.
    """
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        tensor.data = tensor.data.clone()


def name_no_kernel(config: PretrainedConfig) -> None:
    """Replace the attention implementation that a model folder names.

    transformers would look for its package, or download a kernel of that name. The packed models compute
    attention themselves.
    """
    config._attn_implementation = "eager"


def full_weights(model: nn.Module, *, trained_only: bool = False) -> dict[str, Tensor]:
    """Return unsharded weights on the CPU of the first process, none on the others.

    Every process calls this.

    Args:
        model: model on its device.
        trained_only: whether to leave out frozen parameters.
    """
    options = StateDictOptions(
        full_state_dict=True, cpu_offload=True, ignore_frozen_params=trained_only
    )
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

    The folder appears when it is complete, with checksums of its files, and replaces an existing one.

    Args:
        folder: folder to write.
        config: shape of the model.
        weights: full state of the model.
        kind: transformers' class of the model.
        tokens: tokenizer of the model.
    """
    with torch.device("meta"):
        plain = kind(config)
    with new_folder(folder) as partial:
        plain.save_pretrained(partial, state_dict=weights)
        tokens.save_pretrained(partial)


def fingerprint(weights: Mapping[str, Tensor], settings: str = "") -> str:
    """Return the SHA-256 of settings and weights, which identifies a model that gives the same results.

    A core of a Zen 3 hashes about 1 GB/s. Threads run in parallel: hashlib releases the interpreter's lock.
    """

    def digest_of_tensor(name: str) -> bytes:
        flat = weights[name].detach().cpu().contiguous().view(-1).view(torch.uint8)
        return name.encode() + hashlib.sha256(flat.numpy().data).digest()

    with ThreadPoolExecutor() as threads:
        parts = [settings.encode(), *threads.map(digest_of_tensor, sorted(weights))]
    return hashlib.sha256(b"".join(parts)).hexdigest()
