"""Training on XLA devices: AWS Trainium by torch-neuronx, or this machine's cores to test the same code.

torch_xla records operations instead of running them; ``cut_graph`` compiles what was recorded and starts it.
A graph that was seen before is not compiled again, so a run is made of the same few graphs: constant shapes,
no number that changes as a constant, no value read by the host in between. neuronx-cc takes minutes for each.

torch 2.9 is the last that AWS Neuron supports by XLA (release notes of SDK 2.29; later ones bring a device of
their own, ``neuron``, which is not used here). torch_xla is imported where it is used: others lack it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from .config import RunConfig
from .config_rules import xla_violations
from .peak_rates import NEURON_CORE_BF16_FLOPS

T = TypeVar("T")

PJRT_DEVICE = "PJRT_DEVICE"
"""Variable by which torch_xla chooses its device: NEURON, or CPU."""
RENDEZVOUS = "xla://"
"""Of torch.distributed: torch_xla's own way from torchrun's variables to devices that know each other."""
CACHE = "neuron-cache"
"""In a run's folder: what neuronx-cc has compiled, for all nodes and for later starts."""
CACHE_VARIABLE = "NEURON_COMPILE_CACHE_URL"
_CHIPS = {"trn1": "Trainium", "trn2": "Trainium2"}
_INSTANCE_TYPE = Path("/sys/devices/virtual/dmi/id/product_name")


def is_requested() -> bool:
    """Whether the environment names an XLA device."""
    return bool(os.environ.get(PJRT_DEVICE))


def register(cache: Path) -> None:
    """Make torch_xla's device and its backend ``xla`` of torch.distributed known to torch.

    Args:
        cache: folder for what is compiled, unless the environment names another one.

    Raises:
        ValueError: if torch_xla is missing.
    """
    if os.environ[PJRT_DEVICE] == "NEURON":
        os.environ.setdefault(CACHE_VARIABLE, str(cache.absolute()))
    try:
        import torch_xla.distributed.xla_backend  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"{PJRT_DEVICE}: got {os.environ[PJRT_DEVICE]}, and torch_xla cannot be imported ({error}); use "
            f"an image with torch-neuronx, or unset {PJRT_DEVICE} to train on a GPU or the CPU"
        ) from error


def drop_locks(cache: Path) -> None:
    """Remove the locks of compilations that were killed: who finds one waits for its end, for good.

    For one process, before any of them compiles. A folder that the environment has named is left as it is,
    since others may be compiling into it (AWS Neuron documentation, "neuron_parallel_compile", clear-locks).
    """
    if os.environ.get(CACHE_VARIABLE) == str(cache.absolute()):
        for lock in cache.rglob("*.lock"):
            lock.unlink(missing_ok=True)


def connected_device() -> torch.device:
    """The XLA device of this process, once it is part of the process group.

    Raises:
        ValueError: if a sum within a graph does not reach all processes. torch_xla gives no error then, and
            each would train for itself (pytorch/xla issue 9496).
    """
    import torch_xla

    device: torch.device = torch_xla.device()
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    one = torch.ones((), device=device)
    dist.all_reduce(one)
    if (found := round(one.item())) != expected:
        raise ValueError(
            f"{PJRT_DEVICE}: got {os.environ[PJRT_DEVICE]} with {expected} processes, of which XLA adds up "
            f"{found}: they would train apart. Start one process a NeuronCore, or a single one with "
            f"{PJRT_DEVICE}=CPU, or unset it to train on the CPU"
        )
    return device


def is_neuron(device: torch.device) -> bool:
    return device.type == "xla" and os.environ.get(PJRT_DEVICE) == "NEURON"


def check(config: RunConfig, others: Sequence[str] = ()) -> None:
    """Raise ValueError, naming each field, if a run asks for what is not done on XLA devices.

    ``others`` are problems besides those of the trainer's own sections.
    """
    if problems := [*xla_violations(config), *others]:
        raise ValueError(f"{PJRT_DEVICE}={os.environ.get(PJRT_DEVICE)}:\n  " + "\n  ".join(problems))


def cut_graph() -> None:
    """Compile what was recorded, if it is new, and start it; does not wait for its end."""
    import torch_xla

    torch_xla.sync()


def placed(x: T, device: torch.device) -> T:
    """A dataclass with its tensors, and those of dataclasses in it, on the device."""
    moved: dict[str, Any] = {}
    for field in dataclasses.fields(x):  # type: ignore[arg-type]  # a dataclass, whatever T is
        value = getattr(x, field.name)
        if isinstance(value, Tensor):
            moved[field.name] = value.to(device)
        elif dataclasses.is_dataclass(value):
            moved[field.name] = placed(value, device)
    return dataclasses.replace(x, **moved)  # type: ignore[type-var]  # likewise


def begin(model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Give every trained parameter a gradient of 0 and its optimizer's state, as one graph.

    Otherwise the first micro-batch and the first update would be graphs of their own, as large as those of
    the others, and a checkpoint would be read into states that are made one by one.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    for optimizer in optimizers:
        assert isinstance(optimizer, AdamW)  # others are refused
        for group in optimizer.param_groups:
            optimizer._init_group(group, [], [], [], [], [], [])
    cut_graph()


def average_gradients(optimizers: Iterable[Optimizer]) -> None:
    """Mean over all processes, recorded as part of the graph."""
    import torch_xla.core.xla_model as xm

    for optimizer in optimizers:
        xm.reduce_gradients(optimizer)


def recomputed(layer: Callable[..., Tensor], *arguments: object) -> Tensor:
    """A layer whose activations are computed again in the backward pass.

    torch's own function has no effect here: XLA finds both computations equal and keeps the first.
    """
    from torch_xla.utils.checkpoint import checkpoint

    result: Tensor = checkpoint(layer, *arguments, preserve_rng_state=False)
    return result


def device_name() -> str:
    """What the device is called in reports."""
    kind = os.environ.get(PJRT_DEVICE, "")
    if kind != "NEURON":
        return f"XLA:{kind}"
    return " ".join(filter(None, [_chip(), f"NeuronCore of {_instance_type()}"]))


def version(device: torch.device) -> str | None:
    """Of torch_xla, where it is used."""
    return metadata.version("torch_xla") if device.type == "xla" else None


def peak_flops(device: torch.device) -> float | None:
    """bf16 FLOP/s of one logical NeuronCore, None where it is not known."""
    chip = _chip()
    return NEURON_CORE_BF16_FLOPS[chip] if chip and is_neuron(device) else None


def _chip() -> str | None:
    return _CHIPS.get(_instance_type()[:4])


def _instance_type() -> str:
    """Such as trn1.32xlarge, as EC2's machines say of themselves."""
    try:
        return _INSTANCE_TYPE.read_text().strip()
    except OSError:
        return "an unknown machine"
