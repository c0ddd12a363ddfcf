"""Rules for the fields of a run file, beyond the type of each.

A function yields a message for each rule that is broken: ``section.field: got X; allowed values; advice``.
"""

import re
import typing
from collections.abc import Iterator, Mapping

from .config import DataConfig, LoraConfig, LoraTarget, OptimConfig, RunConfig, TrainConfig
from .strict_yaml import shown

MAX_NAME_BYTES = 200
"""Longest name of a run: file systems allow 255 bytes, and files beside the folder have longer names."""
MAX_RECORD_TOKENS = 65_534
"""Largest ``model.max_residues``."""
_LEAST: Mapping[int, str] = {
    0: "optim.weight_decay optim.clip_norm parallel.shard_size train.eval_packs "
    "train.memory_checkpoint_steps",
    1: "train.max_steps train.log_every_steps train.eval_every_steps train.save_every_steps "
    "train.keep_checkpoints lora.rank lora.alpha",
}
"""Fields by the smallest value that they may have."""


def least_violations(config: RunConfig, least: Mapping[int, str]) -> Iterator[str]:
    """Yield a message for each field below its smallest value.

    Args:
        config: configuration of the run; sections and fields may be null.
        least: names of fields, separated by spaces, by the smallest value that they may have.
    """
    for smallest, names in least.items():
        for name in names.split():
            section_name, field = name.split(".")
            section = getattr(config, section_name)
            value = None if section is None else getattr(section, field)
            if value is not None and value < smallest:
                allowed = f"must be at least {smallest}" if smallest else "must not be negative"
                yield f"{name}: got {value}; {allowed}"


def fraction_violations(name: str, value: float) -> Iterator[str]:
    """Yield a message if a field is not between 0 and 1."""
    if not 0 < value < 1:
        yield f"{name}: got {value}; allowed above 0, below 1"


def training_violations(config: RunConfig) -> Iterator[str]:
    """Yield a message for each broken rule of the sections that the trainer reads."""
    yield from _name_violations(config.name)
    if re.search(r"[/\\#?%:]", config.tracking.wandb or ""):
        yield (
            f"tracking.wandb: got {shown(config.tracking.wandb)}; use a project's name without / \\ # ? % :, "
            "and WANDB_ENTITY for a team"
        )
    if not 1 <= config.model.max_residues <= MAX_RECORD_TOKENS:
        yield f"model.max_residues: got {config.model.max_residues}; allowed 1 to {MAX_RECORD_TOKENS}"
    yield from _train_violations(config.train)
    yield from _optim_violations(config.optim, config.train)
    yield from _data_violations(config.data)
    if config.parallel.shard_size != 0 and config.parallel.mode != "fsdp":
        yield (
            f"parallel.shard_size: got {config.parallel.shard_size} with parallel.mode=ddp; only fsdp shards"
        )
    is_one_shard_group = config.parallel.mode == "fsdp" and not config.parallel.shard_size
    if config.train.pack_shares != "even" and is_one_shard_group:
        yield (
            f"train.pack_shares: got {config.train.pack_shares} with parallel.mode=fsdp over all devices, "
            "which pass packs together; set even, parallel.mode=ddp, or parallel.shard_size to the devices "
            "of a node"
        )
    yield from least_violations(config, _LEAST)
    if config.lora is not None:
        yield from _lora_violations(config.lora, config.optim)


def _name_violations(name: str) -> Iterator[str]:
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        yield f"name: got {shown(name)}; use letters, digits, '.', '_' and '-'"
    if len(name.encode()) > MAX_NAME_BYTES:
        yield f"name: got {shown(name)}; use at most {MAX_NAME_BYTES} bytes"


def _train_violations(train: TrainConfig) -> Iterator[str]:
    is_multiple = (
        train.tokens_per_pack > 0
        and train.tokens_per_step >= train.tokens_per_pack
        and train.tokens_per_step % train.tokens_per_pack == 0
    )
    if not is_multiple:
        yield (
            f"train.tokens_per_step: got {train.tokens_per_step}; allowed are multiples of "
            f"train.tokens_per_pack ({train.tokens_per_pack})"
        )


def _optim_violations(optim: OptimConfig, train: TrainConfig) -> Iterator[str]:
    yield from fraction_violations("optim.lr", optim.lr)
    if not all(0 <= beta < 1 for beta in optim.betas):
        yield f"optim.betas: got {list(optim.betas)}; each at least 0, below 1"
    if optim.eps <= 0:
        yield f"optim.eps: got {optim.eps}; must be above 0"
    if not 0 <= optim.final_lr_fraction <= 1:
        yield f"optim.final_lr_fraction: got {optim.final_lr_fraction}; allowed 0 to 1"
    if not 0 <= optim.warmup_steps < train.max_steps:
        yield (
            f"optim.warmup_steps: got {optim.warmup_steps}; must be below train.max_steps "
            f"({train.max_steps}), or the peak learning rate is never reached"
        )


def _data_violations(data: DataConfig) -> Iterator[str]:
    held_out = data.validation_fraction + data.test_fraction
    if data.validation_fraction <= 0 or data.test_fraction < 0 or held_out >= 1:
        yield (
            f"data.validation_fraction, data.test_fraction: got {data.validation_fraction} and "
            f"{data.test_fraction}; the first must be above 0, the second not negative, the sum below 1"
        )
    if not 0 <= data.max_rejected_share <= 1:
        yield f"data.max_rejected_share: got {data.max_rejected_share}; allowed 0 to 1"
    if bool(data.members) != bool(data.membership):
        yield (
            f"data.members, data.membership: got {shown(list(data.members))} and {shown(data.membership)}; "
            "give both or neither"
        )
    if not data.source and not data.members:
        yield "data.source: got an empty list; name at least one FASTA"


def _lora_violations(lora: LoraConfig, optim: OptimConfig) -> Iterator[str]:
    yield from fraction_violations("lora.lr", lora.lr)
    if not lora.targets:
        yield f"lora.targets: got an empty list; allowed are {', '.join(typing.get_args(LoraTarget))}"
    if optim.name != "adamw":
        yield f"optim.name: got {optim.name} with lora; Muon is for whole matrices, so use adamw"


def xla_violations(config: RunConfig) -> Iterator[str]:
    """Yield a message for each setting that XLA devices, such as NeuronCores, do not support."""
    mode = config.parallel.mode
    if mode != "ddp":
        yield f"parallel.mode: got {mode}; FSDP2 does not shard XLA's tensors, so set ddp"
    if config.train.compile == "on":
        yield "train.compile: got on; XLA compiles by itself; leave it at auto"
    if config.train.kernels == "on":
        yield "train.kernels: got on; the kernels are for NVIDIA GPUs; leave it at auto"
    if config.train.pack_shares != "even":
        yield (
            f"train.pack_shares: got {config.train.pack_shares}; XLA computes passes later than they are "
            "launched, so their time is not measured; set even"
        )
    if config.optim.name != "adamw":
        yield f"optim.name: got {config.optim.name}, parts of which torch_xla computes on the host; set adamw"


def fine_tuning_on_xla(section: str) -> str:
    """Return the message for a run with this section on an XLA device."""
    return f"{section}: fine-tuning is not made for XLA; run it on NVIDIA GPUs or CPUs"
