"""Rules for the fields of a run file, beyond the type of each."""

import re
import typing
from collections.abc import Mapping

from .config import LoraTarget, RunConfig
from .strict_yaml import shown

Rule = tuple[bool, str]
"""Whether the rule holds, and the message if not: ``section.field: got X; allowed; what to do``."""

_LEAST = {
    0: "optim.weight_decay optim.clip_norm parallel.shard_size train.eval_packs",
    1: "train.max_steps train.log_every_steps train.eval_every_steps train.save_every_steps "
    "train.keep_checkpoints lora.rank lora.alpha",
}


def least_rules(config: RunConfig, least: Mapping[int, str]) -> list[Rule]:
    """Rules for fields by the smallest value that each may have. Sections and fields may be null."""
    rules = []
    for smallest, names in least.items():
        for name in names.split():
            section, field = name.split(".")
            value = getattr(holder, field) if (holder := getattr(config, section)) else None
            allowed = f"must be at least {smallest}" if smallest else "must not be negative"
            rules.append((value is None or value >= smallest, f"{name}: got {value}; {allowed}"))
    return rules


def fraction_rule(name: str, value: float) -> Rule:
    """Rule for a field between 0 and 1."""
    return 0 < value < 1, f"{name}: got {value}; allowed above 0, below 1"


def training_rules(config: RunConfig) -> list[Rule]:
    """Rules beyond the type of each field."""
    train, optim, data, model = config.train, config.optim, config.data, config.model
    fractions = data.validation_fraction + data.test_fraction
    rules: list[Rule] = [
        (
            bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*", config.name)),
            f"name: got {shown(config.name)}; use letters, digits, '.', '_' and '-'",
        ),
        (
            len(config.name.encode()) <= 200,  # file systems allow 255, and files beside the folder add to it
            f"name: got {shown(config.name)}; use at most 200 bytes",
        ),
        (
            not re.search(r"[/\\#?%:]", config.tracking.wandb or ""),
            f"tracking.wandb: got {shown(config.tracking.wandb)}; use a project's name without / \\ # ? % :, "
            "and WANDB_ENTITY for a team",
        ),
        (
            1 <= model.max_residues <= 65_534,
            f"model.max_residues: got {model.max_residues}; allowed 1 to 65534",
        ),
        (
            train.tokens_per_pack > 0
            and train.tokens_per_step >= train.tokens_per_pack
            and train.tokens_per_step % train.tokens_per_pack == 0,
            f"train.tokens_per_step: got {train.tokens_per_step}; allowed are multiples of "
            f"train.tokens_per_pack ({train.tokens_per_pack})",
        ),
        fraction_rule("optim.lr", optim.lr),
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
    return [*rules, *least_rules(config, _LEAST), *_lora_rules(config)]


def xla_violations(config: RunConfig) -> list[str]:
    """Return settings that XLA devices, such as NeuronCores, do not support; each as a rule's message."""
    optimizer, mode = config.optim.name, config.parallel.mode
    rules: list[Rule] = [
        (mode == "ddp", f"parallel.mode: got {mode}; FSDP2 does not shard XLA's tensors, so set ddp"),
        (config.train.compile != "on", "train.compile: got on; XLA compiles by itself; leave it at auto"),
        (
            optimizer == "adamw",
            f"optim.name: got {optimizer}, parts of which torch_xla computes on the host; set adamw",
        ),
    ]
    return [message for holds, message in rules if not holds]


def fine_tuning_on_xla(section: str) -> str:
    """Message for a run with this section on an XLA device."""
    return f"{section}: fine-tuning is not made for XLA; run it on NVIDIA GPUs or CPUs"


def _lora_rules(config: RunConfig) -> list[Rule]:
    lora = config.lora
    if lora is None:
        return []
    return [
        fraction_rule("lora.lr", lora.lr),
        (
            bool(lora.targets),
            f"lora.targets: got an empty list; allowed are {', '.join(typing.get_args(LoraTarget))}",
        ),
        (
            config.optim.name == "adamw",
            f"optim.name: got {config.optim.name} with lora; Muon is for whole matrices, so use adamw",
        ),
    ]
