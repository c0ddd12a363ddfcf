"""What the fields of a run file must be together, beyond the type of each."""

from __future__ import annotations

import re
import typing
from typing import TYPE_CHECKING

from workloads.causal_lm.config import chat_rules

from .strict_yaml import shown

if TYPE_CHECKING:  # which reads the rules
    from .config import RunConfig

_LEAST = {
    0: "optim.weight_decay optim.clip_norm parallel.shard_size evaluate.pseudo_perplexity_proteins "
    "inference.tokens_per_pack train.eval_packs chat.questions",
    1: "train.max_steps train.log_every_steps train.eval_every_steps train.save_every_steps "
    "train.keep_checkpoints inference.part_residues lora.rank lora.alpha bionemo.micro_batch_size "
    "bionemo.tensor_parallel_size bionemo.check_every_steps bionemo.dataset_workers chat.max_new_tokens "
    "chat.questions_at_once",
}
"""Fields by the smallest value that each may have. Sections and fields may be null."""


def rule_violations(config: RunConfig) -> list[str]:
    """Every broken rule that spans a field's type, as ``section.field: got X; allowed; what to do``."""
    train, optim, data, model = config.train, config.optim, config.data, config.model
    fractions = data.validation_fraction + data.test_fraction
    rules: list[tuple[bool, str]] = [
        (
            bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", config.name)),
            f"name: got {shown(config.name)}; use letters, digits, '.', '_' and '-'",
        ),
        (
            len(config.name.encode()) <= 200,  # file systems allow 255, and files beside the folder add to it
            f"name: got {shown(config.name)}; use at most 200 bytes",
        ),
        (
            1 <= model.max_residues <= 65_534,
            f"model.max_residues: got {model.max_residues}; allowed 1 to 65534",
        ),
        (
            0 < model.mask_fraction < 1,
            f"model.mask_fraction: got {model.mask_fraction}; allowed above 0, below 1",
        ),
        (
            config.chat is not None or train.tokens_per_pack >= model.max_residues + 2,
            f"train.tokens_per_pack: got {train.tokens_per_pack}; a pack must hold the longest protein, "
            f"so at least model.max_residues + 2 = {model.max_residues + 2}",
        ),
        (
            train.tokens_per_pack > 0
            and train.tokens_per_step >= train.tokens_per_pack
            and train.tokens_per_step % train.tokens_per_pack == 0,
            f"train.tokens_per_step: got {train.tokens_per_step}; allowed are multiples of "
            f"train.tokens_per_pack ({train.tokens_per_pack})",
        ),
        (0 < optim.lr < 1, f"optim.lr: got {optim.lr}; allowed above 0, below 1"),
        (
            all(0 <= beta < 1 for beta in optim.betas),
            f"optim.betas: got {list(optim.betas)}; each at least 0, below 1",
        ),
        (optim.eps > 0, f"optim.eps: got {optim.eps}; must be above 0"),
        (
            0 <= optim.final_lr_fraction <= 1,
            f"optim.final_lr_fraction: got {optim.final_lr_fraction}; allowed 0 to 1",
        ),
        (
            0 <= optim.warmup_steps < train.max_steps,
            f"optim.warmup_steps: got {optim.warmup_steps}; must be below train.max_steps "
            f"({train.max_steps}), or the peak learning rate is never reached",
        ),
        (
            data.validation_fraction > 0 and data.test_fraction >= 0 and fractions < 1,
            f"data.validation_fraction, data.test_fraction: got {data.validation_fraction} and "
            f"{data.test_fraction}; the first must be above 0, the second not negative, the sum below 1",
        ),
        (
            bool(data.members) == bool(data.membership),
            f"data.members, data.membership: got {shown(list(data.members))} and {shown(data.membership)}; "
            "give both or neither",
        ),
        (bool(data.source or data.members), "data.source: got an empty list; name at least one FASTA"),
        (
            config.parallel.shard_size == 0 or config.parallel.mode == "fsdp",
            f"parallel.shard_size: got {config.parallel.shard_size} with parallel.mode=ddp; only fsdp shards",
        ),
    ]
    rules.append((bool(config.inference.input), "inference.input: got an empty list; name at least one file"))
    for least, names in _LEAST.items():
        for name in names.split():
            section, field = name.split(".")
            value = getattr(holder, field) if (holder := getattr(config, section)) else None
            allowed = f"must be at least {least}" if least else "must not be negative"
            rules.append((value is None or value >= least, f"{name}: got {value}; {allowed}"))
    if config.task is not None:
        kind, weights = config.task.kind, config.task.class_weights
        rules.append(
            (
                kind != "regression" or weights == "none",
                f"task.class_weights: got {weights} with kind regression, which has no classes; leave it out",
            )
        )
    if config.chat is not None:
        rules += chat_rules(config)
    rules += _lora_rules(config)
    return [message for holds, message in rules if not holds]


def xla_violations(config: RunConfig) -> list[str]:
    """What a run asks for that XLA devices, as NeuronCores, do not do; each as in ``rule_violations``."""
    problems = []
    if config.parallel.mode != "ddp":
        problems.append(
            f"parallel.mode: got {config.parallel.mode}; FSDP2 does not shard XLA's tensors, so set ddp"
        )
    if config.train.compile == "on":
        problems.append("train.compile: got on; XLA compiles by itself; leave it at auto")
    if config.optim.name != "adamw":
        problems.append(
            f"optim.name: got {config.optim.name}, parts of which torch_xla computes on the host; set adamw"
        )
    return problems + [
        f"{name}: fine-tuning is not made for XLA; run it on NVIDIA GPUs or CPUs"
        for name, section in (("task", config.task), ("chat", config.chat))
        if section is not None
    ]


def _lora_rules(config: RunConfig) -> list[tuple[bool, str]]:
    from .config import LoraTarget  # here, since that module reads this one

    lora = config.lora
    if lora is None:
        return []
    return [
        (
            config.task is not None or config.chat is not None,
            "lora: adapters are for fine-tuning; add a section task: or chat:, or leave lora out to "
            "pre-train",
        ),
        (0 < lora.lr < 1, f"lora.lr: got {lora.lr}; allowed above 0, below 1"),
        (
            bool(lora.targets),
            f"lora.targets: got an empty list; allowed are {', '.join(typing.get_args(LoraTarget))}",
        ),
        (
            config.optim.name == "adamw",
            f"optim.name: got {config.optim.name} with lora; Muon is for whole matrices, so use adamw",
        ),
    ]
