"""Command lines of BioNeMo's entry points, built from a run file.

What of a run BioNeMo does another way, and gives no option for, is refused: the same file must not mean two
things. Its fixed values are those of ``train_esm2.py`` and ``finetune_esm2.py`` (of which version, says
``options.json``), of Megatron's ``OptimizerConfig`` and of NeMo's ``LoRA``.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.runs.run_file import RunFile

from .config import BionemoConfig
from .files import EXPERIMENT, ExportFiles

EntryPointName = Literal["train_esm2", "finetune_esm2", "convert"]
LORA_TARGETS = ("query", "key", "value", "attention_output", "intermediate", "output")
SPECIAL_TOKENS = 2
"""CLS and EOS, which BioNeMo counts in sequence lengths."""


@dataclass(frozen=True)
class Devices:
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
    """Proteins, or clusters, of which each evaluation reads one."""
    num_classes: int = 0
    """0 for pre-training and regression."""


def settings(config: RunFile) -> BionemoConfig:
    return config.bionemo or BionemoConfig()


def entry_point_of(config: RunFile) -> EntryPointName:
    return "train_esm2" if config.task is None else "finetune_esm2"


def unsupported(config: RunFile) -> list[str]:
    """Fields whose values BioNeMo cannot follow, each with the value that it can."""
    optim, model = config.optim, config.model
    fixed: list[tuple[str, Any, Any]] = [
        ("optim.name", optim.name, "adamw"),
        ("optim.betas", tuple(optim.betas), (0.9, 0.98)),
        ("optim.eps", optim.eps, 1e-8),
        ("optim.weight_decay", optim.weight_decay, 0.01),
        ("optim.clip_norm", optim.clip_norm, 1.0),
        ("model.mask_fraction", model.mask_fraction, 0.15),
        ("train.seed", config.train.seed, 0),
    ]
    if config.task is None:
        fixed += [
            ("optim.schedule", optim.schedule, "linear"),
            ("optim.final_lr_fraction", optim.final_lr_fraction, 0.1),
        ]
    else:
        fixed += [
            ("optim.schedule", optim.schedule, "constant"),
            ("optim.warmup_steps", optim.warmup_steps, 0),
            ("task.class_weights", config.task.class_weights, "none"),
        ]
    if config.lora is not None:
        fixed += [
            ("lora.rank", config.lora.rank, 32),
            ("lora.alpha", config.lora.alpha, 32),
            ("lora.targets", tuple(sorted(config.lora.targets)), tuple(sorted(LORA_TARGETS))),
            ("lora.quantize", config.lora.quantize, "none"),
            ("lora.merge", config.lora.merge, False),
        ]
    found = [
        f"{name}: got {_text(value)}; BioNeMo has no option for it, allowed is {_text(there)}"
        for name, value, there in fixed
        if value != there
    ]
    if config.chat is not None:
        found.append("chat: BioNeMo's entry points train ESM-2 alone; make finetune-llm trains this run")
    if (task := config.task) is None:
        return found
    if task.kind == "multilabel":
        found.append(
            "task.kind: got multilabel; BioNeMo's heads take binary, multiclass, regression and residue"
        )
    if task.kind == "regression" and len(task.label_columns) > 1:
        found.append(
            f"task.label_columns: got {_text(task.label_columns)}; BioNeMo's regression has one column"
        )
    if config.model.init_from is None:
        found.append(
            "model.init_from: is missing; BioNeMo fine-tunes checkpoints of its own format: make "
            "convert-bionemo makes one"
        )
    return found


def batch_problems(config: RunFile, world_size: int) -> list[str]:
    """List why steps of the run's size cannot be made of micro batches on so many devices."""
    shared = settings(config).tensor_parallel_size
    if world_size % shared:
        return [f"bionemo.tensor_parallel_size: got {shared} on {world_size} device(s); it must divide that"]
    micro, replicas, step = micro_batch_size(config), world_size // shared, step_proteins(config)
    if micro and step and step % (micro * replicas) == 0:
        return []
    fitting = [size for size in range(1, step // replicas + 1) if step % (size * replicas) == 0]
    ways = f"bionemo.micro_batch_size of {_text(fitting[-8:])}" if fitting else "fewer devices"
    return [
        f"bionemo.micro_batch_size: got {micro} on {world_size} device(s), {replicas} with own data; "
        f"a step has {step} proteins (train.tokens_per_step over model.max_residues + {SPECIAL_TOKENS}), "
        f"which is no multiple of {micro * replicas}; allowed here: {ways}, or another train.tokens_per_step"
    ]


def micro_batch_size(config: RunFile) -> int:
    """Return the number of proteins that a device reads at once."""
    given = settings(config).micro_batch_size
    return given if given is not None else config.train.tokens_per_pack // row_tokens(config)


def step_proteins(config: RunFile) -> int:
    """Return the proteins of an optimizer step on all devices together."""
    return config.train.tokens_per_step // row_tokens(config)


def row_tokens(config: RunFile) -> int:
    return config.model.max_residues + SPECIAL_TOKENS


def arguments(config: RunFile, devices: Devices, data: Data) -> list[str]:
    """Arguments for the entry point that ``entry_point_of`` names; torchrun's options give the devices.

    Raises:
        ValueError: listing what BioNeMo cannot do, or not on these devices.
    """
    if problems := unsupported(config) + batch_problems(config, devices.world_size):
        raise ValueError("BioNeMo cannot train this run:\n" + "\n".join(f"  {line}" for line in problems))
    own, train = settings(config), config.train
    at_once = micro_batch_size(config) * devices.world_size // own.tensor_parallel_size
    # Lightning refuses an interval longer than the run.
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
    words = ["--resume-if-exists", "--create-tensorboard-logger"]
    if config.task is None:
        given |= _pretraining(config, data.files)
    else:
        given |= _fine_tuning(config, data)
        words += ["--lora-finetune"] if config.lora else []
    return [*(f"--{name}={value}" for name, value in given.items()), *words]


def _evaluation_steps(config: RunFile, num_validation: int) -> int:
    """Batches as large as a step that an evaluation reads; BioNeMo takes no part of one."""
    step, packs = step_proteins(config), config.train.eval_packs
    there = max(1, num_validation // step)
    if not packs:
        return there
    return min(there, math.ceil(packs * config.train.tokens_per_pack / config.train.tokens_per_step))


def _pretraining(config: RunFile, files: ExportFiles) -> dict[str, Any]:
    size = ESM2.sizes[config.model.size]
    return {
        "train-cluster-path": files.clusters("train"),
        "train-database-path": files.proteins("train"),
        "valid-cluster-path": files.clusters("validation"),
        "valid-database-path": files.proteins("validation"),
        # Without it rows are padded to the same length, and Megatron expects varying lengths.
        "min-seq-length": row_tokens(config),
        "warmup-steps": config.optim.warmup_steps,
        "random-mask-strategy": "amino_acids_only",
        "num-layers": size.layers,
        "hidden-size": size.hidden,
        "num-attention-heads": size.heads,
        "ffn-hidden-size": 4 * size.hidden,
    }


def _fine_tuning(config: RunFile, data: Data) -> dict[str, Any]:
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
    """Directions of BioNeMo's converter: from a transformers folder or hub id to a checkpoint, or back."""
    command = "convert-hf-to-nemo" if to_bionemo else "convert-nemo-to-hf"
    return [command, source, str(target), "--no-overwrite"]


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
