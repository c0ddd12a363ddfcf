"""Weights to start from, models to use, and models written for others to load: transformers' format."""

import itertools
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from seqlm.proteins.alphabet import TOKENS
from seqlm.proteins.families.table import MODEL_FAMILIES, family_of_type
from seqlm.runs.run_file import ModelConfig, RunFile
from seqlm.training.checkpoint_reader import weights_of
from seqlm.training.checksums import (
    ADAPTER_FILE,
    CHECKPOINT_FILE,
    read_document,
    unreadable,
    verified,
)
from seqlm.training.data.model_folder import check_config, check_files, check_num_parameters
from seqlm.training.data.small_file import MAX_CONFIG_BYTES, read_small
from seqlm.training.processes import Processes
from seqlm.training.saved_model import assigned, load_plain, name_no_kernel, save_model
from seqlm.training.strict_yaml import shown, shown_first

from .architecture import Architecture
from .packed_model import PackedModel


def of_config(config: PretrainedConfig) -> Architecture:
    """Return the architecture of a configuration.

    Raises:
        ValueError: if no family has its type of model.
    """
    return family_of_type(config.model_type).architecture()


def starting_config(model: ModelConfig) -> PretrainedConfig:
    """Return the configuration of the published model of ``model.size``, or that of ``model.init_from``.

    ``init_from`` may be a hub id, a folder that transformers wrote, or a checkpoint folder of this project.

    Raises:
        ValueError: if ``init_from`` cannot be read.
    """
    if model.init_from is None:
        return MODEL_FAMILIES[model.family].architecture().published(model.size)
    folder = Path(model.init_from)
    check_files(folder)
    if (folder / CHECKPOINT_FILE).exists():
        try:
            saved = read_document(folder)["model_config"]
            check_config(saved, folder / CHECKPOINT_FILE)
            config = family_of_type(saved["model_type"]).architecture().config(**saved)
            name_no_kernel(config)
            return config
        except Exception as error:  # transformers raises nearly anything
            raise unreadable(folder, error) from error
    if (folder / ADAPTER_FILE).exists():
        raise ValueError(
            f"model.init_from: {folder} holds an adapter and a head without the model that they belong to; "
            "give the run's model folder, in which it is merged (lora.merge)"
        )
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ValueError(
            f"model.init_from: {folder} holds neither config.json (transformers) nor {CHECKPOINT_FILE} (a "
            "checkpoint of this project); give the model folder of a run, one of its checkpoints/step-*, "
            "or a hub id such as facebook/esm2_t6_8M_UR50D"
        )
    return _read_config(model.init_from)


def check_start(config: RunFile) -> None:
    """Raise ValueError if the model to start from cannot be read."""
    if config.model.init_from is not None:
        starting_config(config.model)


def starting_weights(
    model: ModelConfig,
    seed: int,
    kind: type[PreTrainedModel] | None = None,
    *,
    encoder_only: bool = False,
) -> dict[str, Tensor]:
    """Return full fp32 weights: random ones, or those of ``model.init_from``.

    Args:
        model: model to start from.
        seed: seed of random weights.
        kind: transformers' class of the model in ``init_from``; by default a masked language model.
        encoder_only: whether ``init_from`` may have another head, or none. The weights of the head are then
            arbitrary.

    Raises:
        ValueError: if ``init_from`` cannot be read, or lacks weights.
    """
    if model.init_from is None:
        # A generator state of its own: a library that draws numbers earlier must not change the weights.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            config = starting_config(model)
            plain = of_config(config).masked_lm.plain(config)
            return plain.state_dict()
    folder = Path(model.init_from)
    if (folder / CHECKPOINT_FILE).exists():
        return weights_of(folder)
    config = _read_config(model.init_from)  # before anything large is loaded
    family = of_config(config)
    kind = kind or family.masked_lm.plain
    with torch.device("meta"):
        check_num_parameters(folder, kind(config).num_parameters())
    loaded, absent = load_plain(kind, model.init_from, config=config, dtype=torch.float32)
    missing = sorted(
        name
        for name in absent
        if not name.startswith(family.may_lack)
        and (name.startswith(family.encoder) or not encoder_only)
    )
    if missing:
        raise ValueError(
            f"model.init_from: {model.init_from} lacks {shown_first(missing)}; give a whole model, with a "
            "masked language head unless it is fine-tuned"
        )
    return dict(loaded.state_dict())


def _read_config(init_from: str) -> PretrainedConfig:
    try:
        _check_reached(init_from)
        saved, _ = PretrainedConfig.get_config_dict(init_from)
        check_config(saved, init_from)
        family = family_of_type(saved.get("model_type", ""))
        config = family.architecture().config.from_pretrained(init_from, trust_remote_code=False)
        name_no_kernel(config)
        _check_vocabulary(Path(init_from) / "vocab.txt")
        return config
    except Exception as error:  # transformers raises nearly anything
        if Path(init_from).is_dir():
            raise unreadable(init_from, error) from error
        raise ValueError(
            f"{init_from!r} was not found as a folder here or as a model of the Hugging Face Hub. Without a "
            f"network: make train-ddp, and then MODEL=runs/esm2_8m_sample/model. {error}"
        ) from error


def _check_vocabulary(file: Path) -> None:
    """Check that the tokens of a model are those of ``alphabet``, whose ids its weights are looked up by.

    Raises:
        ValueError: if the file exists and has other tokens, or another order.
    """
    if not file.exists():
        return
    found = read_small(file, MAX_CONFIG_BYTES).split()
    differing = [
        f"{shown(got)} in place of {expected!r}"
        for got, expected in itertools.zip_longest(found, TOKENS, fillvalue="nothing")
        if got != expected
    ]
    if differing:
        raise ValueError(
            f"{file} has other tokens than ESM-2, or another order: {differing[0]}; give a model of ESM-2's "
            "alphabet"
        )


def _check_reached(init_from: str) -> None:
    """Raise OSError if a model must come from the hub, and the hub does not answer or does not have it.

    transformers would repeat its requests for half a minute and more.
    """
    if Path(init_from).exists() or try_to_load_from_cache(init_from, "config.json") is not None:
        return
    url = hf_hub_url(init_from, "config.json")
    try:
        get_hf_file_metadata(url)
    except Exception as error:  # of whichever library the hub's client speaks HTTP by
        raise OSError(f"{url}: {error}") from error


def on_meta(config: PretrainedConfig) -> Any:
    """Return a masked language model without weights, for ``parallelize`` or ``assigned``."""
    with torch.device("meta"):
        return of_config(config).masked_lm.packed(config)


def with_weights(config: PretrainedConfig, weights: dict[str, Tensor]) -> Any:
    """Return a masked language model with weights, on this process alone."""
    return assigned(on_meta(config), weights)


def load_model(name: str, here: Processes | None = None) -> PackedModel:
    """Load a model to the CPU, in fp32 and without gradients. Its head computes in fp32.

    Args:
        name: folder that transformers wrote, checkpoint of this project, or hub id.
        here: this process, if all processes of a job load the model.

    Raises:
        ValueError: if there is no such model, if its family is not known, or if it is damaged or lacks
            weights.
    """
    disable_progress_bar()  # in a log, or from each process, it is only noise
    with verified(name, here):
        config = starting_config(ModelConfig(init_from=name))
        family = of_config(config)
        architecture = (config.architectures or [family.masked_lm.plain.__name__])[0]
        classes = family.classes
        if architecture not in classes:
            raise ValueError(
                f"{name}: a model of the kind {shown(architecture)}; allowed are {', '.join(classes)}"
            )
        model_class = classes[architecture]
        if config.problem_type == "regression" and (Path(name) / CHECKPOINT_FILE).exists():
            raise ValueError(
                f"{name} is a checkpoint of a regression, which does not hold the units of its values; give "
                "the model folder of the run, or score it with make evaluate"
            )
        weights = starting_weights(ModelConfig(init_from=name), 0, model_class.plain)
        with torch.device("meta"):
            empty = model_class.packed(config)
        empty.exact_head = True
        return assigned(empty, weights).requires_grad_(False).eval()


def save_esm(
    folder: Path,
    config: PretrainedConfig,
    weights: dict[str, Tensor],
    kind: type[PreTrainedModel] | None = None,
) -> None:
    """Write a model with its family's tokenizer; the folder appears whole or not at all.

    Args:
        folder: folder to create.
        config: configuration of the model.
        weights: fp32 weights by transformers' names.
        kind: transformers' class; by default that of a masked language model.
    """
    kind = kind or of_config(config).masked_lm.plain
    save_model(folder, config, weights, kind, tokenizer(config))


def tokenizer(config: PretrainedConfig) -> Any:
    """Return transformers' tokenizer, which saved models bring for programs that use transformers."""
    return of_config(config).tokenizer(config)
