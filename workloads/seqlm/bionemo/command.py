"""Command lines of BioNeMo's entry points, built from a run file.

If BioNeMo has a fixed value for a setting and no option, a run with another value is rejected, because a run
file must mean the same everywhere. The fixed values are those of ``train_esm2.py`` and ``finetune_esm2.py``
(``options.json`` has the release), of Megatron's ``OptimizerConfig`` and of NeMo's ``LoRA``.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.runs.run_file import RunFile

from .config import BionemoConfig
from .files import EXPERIMENT, ExportFiles

EntryPointName = Literal["train_esm2", "finetune_esm2", "convert"]
LORA_TARGETS = ("query", "key", "value", "attention_output", "intermediate", "output")
"""Matrices that get adapters in BioNeMo."""
SPECIAL_TOKENS = 2
"""Number of CLS and EOS, which BioNeMo counts in sequence lengths."""
SHOWN_SIZES = 8
"""Number of micro batch sizes that a message suggests."""


@dataclass(frozen=True)
class Devices:
    """Devices of a training."""

    num_nodes: int
    gpus_per_node: int

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.gpus_per_node


@dataclass(frozen=True)
class Data:
    """Properties of an export that a command line contains."""

    files: ExportFiles
    num_validation: int
    """Number of clusters in validation, of which an evaluation reads one protein each."""
    num_classes: int = 0
    """Number of classes; 0 for pre-training and regression."""


def settings(config: RunFile) -> BionemoConfig:
    """Return the section ``bionemo`` of the run file, or its defaults."""
    return config.bionemo or BionemoConfig()


def entry_point_of(config: RunFile) -> EntryPointName:
    """Return the entry point that trains the run."""
    return "train_esm2" if config.task is None else "finetune_esm2"


class _Fixed(NamedTuple):
    """Setting for which BioNeMo has no option."""

    field: str
    """Field of the run file."""
    value: object
    """Value in the run file."""
    allowed: object
    """Value that BioNeMo uses."""


def unsupported(config: RunFile) -> list[str]:
    """List the fields with values that BioNeMo does not support, each with the allowed value."""
    problems = [
        f"{field}: got {_text(value)}; BioNeMo has no option for it, allowed is {_text(allowed)}"
        for field, value, allowed in _fixed_settings(config)
        if value != allowed
    ]
    if config.chat is not None:
        problems.append(
            "chat: BioNeMo's entry points train ESM-2 alone; make finetune-llm trains this run"
        )
    return problems + _task_problems(config)


def _fixed_settings(config: RunFile) -> list[_Fixed]:
    """Return the settings of a run for which BioNeMo has no option."""
    optim = config.optim
    fixed = [
        _Fixed("optim.name", optim.name, "adamw"),
        _Fixed("optim.betas", tuple(optim.betas), (0.9, 0.98)),
        _Fixed("optim.eps", optim.eps, 1e-8),
        _Fixed("optim.weight_decay", optim.weight_decay, 0.01),
        _Fixed("optim.clip_norm", optim.clip_norm, 1.0),
        _Fixed("model.mask_fraction", config.model.mask_fraction, 0.15),
        _Fixed("train.seed", config.train.seed, 0),
    ]
    if config.task is None:
        fixed += [
            _Fixed("optim.schedule", optim.schedule, "linear"),
            _Fixed("optim.final_lr_fraction", optim.final_lr_fraction, 0.1),
        ]
    else:
        fixed += [
            _Fixed("optim.schedule", optim.schedule, "constant"),
            _Fixed("optim.warmup_steps", optim.warmup_steps, 0),
            _Fixed("task.class_weights", config.task.class_weights, "none"),
        ]
    lora = config.lora
    if lora is not None:
        fixed += [
            _Fixed("lora.rank", lora.rank, 32),
            _Fixed("lora.alpha", lora.alpha, 32),
            _Fixed("lora.targets", tuple(sorted(lora.targets)), tuple(sorted(LORA_TARGETS))),
            _Fixed("lora.quantize", lora.quantize, "none"),
            _Fixed("lora.merge", lora.merge, False),
        ]
    return fixed


def _task_problems(config: RunFile) -> list[str]:
    """List the reasons why BioNeMo cannot train the task of a run."""
    task = config.task
    if task is None:
        return []
    problems = []
    if task.kind == "multilabel":
        problems.append(
            "task.kind: got multilabel; BioNeMo's heads take binary, multiclass, regression and residue"
        )
    if task.kind == "regression" and len(task.label_columns) > 1:
        problems.append(
            f"task.label_columns: got {_text(task.label_columns)}; BioNeMo's regression has one column"
        )
    if config.model.init_from is None:
        problems.append(
            "model.init_from: is missing; BioNeMo fine-tunes checkpoints of its own format: make "
            "convert-bionemo makes one"
        )
    return problems


def batch_problems(config: RunFile, world_size: int) -> list[str]:
    """List the reasons why the run's steps cannot consist of micro batches on this number of devices."""
    shared = settings(config).tensor_parallel_size
    if world_size % shared:
        return [
            f"bionemo.tensor_parallel_size: got {shared} on {world_size} device(s); it must divide that"
        ]
    micro_size = micro_batch_size(config)
    num_replicas = world_size // shared
    at_once = micro_size * num_replicas
    in_step = step_proteins(config)
    if at_once and in_step and in_step % at_once == 0:
        return []
    sizes = range(1, in_step // num_replicas + 1)
    fitting = [size for size in sizes if in_step % (size * num_replicas) == 0]
    shown = _text(fitting[-SHOWN_SIZES:])
    remedy = f"bionemo.micro_batch_size of {shown}" if fitting else "fewer devices"
    return [
        f"bionemo.micro_batch_size: got {micro_size} on {world_size} device(s), {num_replicas} with own "
        f"data; a step has {in_step} proteins (train.tokens_per_step over model.max_residues + "
        f"{SPECIAL_TOKENS}), which is no multiple of {at_once}; allowed here: {remedy}, or another "
        "train.tokens_per_step"
    ]


def micro_batch_size(config: RunFile) -> int:
    """Return the number of proteins that a device reads at once."""
    given = settings(config).micro_batch_size
    return given if given is not None else config.train.tokens_per_pack // row_tokens(config)


def step_proteins(config: RunFile) -> int:
    """Return the proteins of an optimizer step on all devices together."""
    return config.train.tokens_per_step // row_tokens(config)


def row_tokens(config: RunFile) -> int:
    """Return the tokens of the longest protein."""
    return config.model.max_residues + SPECIAL_TOKENS


def arguments(config: RunFile, devices: Devices, data: Data) -> list[str]:
    """Return the arguments for the entry point that ``entry_point_of`` names.

    Args:
        config: run file.
        devices: devices of the training, as torchrun has them.
        data: export of the run's data.

    Raises:
        ValueError: with a list of the settings that BioNeMo does not support, or not on these devices.
    """
    problems = unsupported(config) + batch_problems(config, devices.world_size)
    if problems:
        raise ValueError(
            "BioNeMo cannot train this run:\n" + "\n".join(f"  {line}" for line in problems)
        )
    own = settings(config)
    train = config.train
    at_once = micro_batch_size(config) * devices.world_size // own.tensor_parallel_size
    # Lightning rejects an interval that is longer than the run.
    check_every = min(own.check_every_steps or train.save_every_steps, train.max_steps)
    given: dict[str, Any] = {
        "num-nodes": devices.num_nodes,
        "num-gpus": devices.gpus_per_node,
        "tensor-model-parallel-size": own.tensor_parallel_size,
        "micro-batch-size": micro_batch_size(config),
        "accumulate-grad-batches": step_proteins(config) // at_once,
        "max-seq-length": row_tokens(config),
        "num-steps": train.max_steps,
        "val-check-interval": check_every,
        "limit-val-batches": _evaluation_steps(config, data.num_validation),
        "log-every-n-steps": train.log_every_steps,
        "num-dataset-workers": own.dataset_workers,
        "precision": "fp32" if train.precision == "fp32" else "bf16-mixed",
        "lr": config.lora.lr if config.lora else config.optim.lr,
        "save-top-k": train.keep_checkpoints,
        "result-dir": config.run_dir,
        "experiment-name": EXPERIMENT,
    }
    if config.model.init_from is not None:
        given["restore-from-checkpoint-path"] = config.model.init_from
    flags = ["--resume-if-exists", "--create-tensorboard-logger"]
    if config.task is None:
        given |= _pretraining(config, data.files)
    else:
        given |= _fine_tuning(config, data)
        if config.lora:
            flags.append("--lora-finetune")
    options = [f"--{name}={value}" for name, value in given.items()]
    return options + flags


def _evaluation_steps(config: RunFile, num_validation: int) -> int:
    """Return the batches of an evaluation, which are as large as a step and always complete."""
    train = config.train
    all_batches = max(1, num_validation // step_proteins(config))
    if not train.eval_packs:
        return all_batches
    wanted_batches = math.ceil(train.eval_packs * train.tokens_per_pack / train.tokens_per_step)
    return min(all_batches, wanted_batches)


def _pretraining(config: RunFile, files: ExportFiles) -> dict[str, Any]:
    """Return the options of pre-training alone."""
    size = ESM2.sizes[config.model.size]
    return {
        "train-cluster-path": files.clusters("train"),
        "train-database-path": files.proteins("train"),
        "valid-cluster-path": files.clusters("validation"),
        "valid-database-path": files.proteins("validation"),
        # Without this option, rows are padded to the same length, but Megatron expects varying lengths.
        "min-seq-length": row_tokens(config),
        "warmup-steps": config.optim.warmup_steps,
        "random-mask-strategy": "amino_acids_only",
        "num-layers": size.layers,
        "hidden-size": size.hidden,
        "num-attention-heads": size.heads,
        "ffn-hidden-size": 4 * size.hidden,
    }


def _fine_tuning(config: RunFile, data: Data) -> dict[str, Any]:
    """Return the options of fine-tuning alone."""
    assert config.task is not None
    given: dict[str, Any] = {
        "train-data-path": data.files.table("train"),
        "valid-data-path": data.files.table("validation"),
        "task-type": "regression" if config.task.kind == "regression" else "classification",
        "label-column": "labels",
    }
    if config.task.kind == "residue":
        return given | {
            "dataset-class": "InMemoryPerTokenValueDataset",
            "config-class": "ESM2FineTuneTokenConfig",
            "cnn-num-classes": data.num_classes,
        }
    return given | {
        "dataset-class": "InMemorySingleValueDataset",
        "config-class": "ESM2FineTuneSeqConfig",
        "mlp-target-size": data.num_classes or 1,
    }


def conversion(source: str, target: Path, *, to_bionemo: bool) -> list[str]:
    """Return the command line of BioNeMo's converter.

    Args:
        source: transformers folder or hub id, or checkpoint of BioNeMo.
        target: path of the result.
        to_bionemo: whether the result is a checkpoint of BioNeMo, rather than a transformers folder.
    """
    command = "convert-hf-to-nemo" if to_bionemo else "convert-nemo-to-hf"
    return [command, source, str(target), "--no-overwrite"]


def _text(value: object) -> str:
    """Return a value as a run file has it."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
