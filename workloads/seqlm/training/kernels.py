"""Kernels of this project for GPUs, and which of them a run uses.

``KERNELS`` is the table of all kernels. A model offers those that it can compute with
(``LayeredModel.kernels``), ``train.kernels`` selects among them, and a check at the start of the run leaves
out those whose results differ from torch's.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.distributed as dist

from .config import KernelMode
from .processes import Processes

KERNELS_FIELD = "kernels"
"""Field of the environment in checkpoints and results that lists the kernels of a start."""

ATTENTION = "attention"
PRODUCTS = "products"
ACTIVATION = "activation"
GRAPH = "graph"


@dataclass(frozen=True)
class Kernel:
    """One way in which a GPU computes with code of this project instead of torch's."""

    name: str
    """Name in the log, in results and in the benchmarks' option ``--kernels``."""
    summary: str
    """Work that it does, for messages."""
    in_auto: bool
    """Whether ``auto`` uses it."""
    for_inference: bool
    """Whether it serves a forward pass alone."""
    needs_triton: bool
    """Whether it is written in Triton."""
    keeps_gradients: bool
    """Whether it adds to gradients that keep their places in memory. DDP's hooks cannot reduce these during
    the backward pass, and FSDP2 cannot keep them, so a run has neither."""


KERNELS: Mapping[str, Kernel] = {
    one.name: one
    for one in (
        Kernel(
            ATTENTION,
            "attention within the records of a pack in Triton",
            in_auto=True,
            for_inference=True,
            needs_triton=True,
            keeps_gradients=False,
        ),
        Kernel(
            PRODUCTS,
            "weights cast once per step, and their gradients added up in fp32 by the product",
            in_auto=True,
            for_inference=False,
            needs_triton=False,
            keeps_gradients=True,
        ),
        Kernel(
            GRAPH,
            "CUDA graph of a micro-batch",
            in_auto=True,
            for_inference=False,
            needs_triton=False,
            keeps_gradients=True,
        ),
        Kernel(
            ACTIVATION,
            "exact GELU in Triton",
            in_auto=False,
            for_inference=False,
            needs_triton=True,
            keeps_gradients=False,
        ),
    )
}
"""All kernels by name, in the order in which they are measured, each on top of those before it."""


def selected(
    mode: KernelMode,
    offered: Iterable[str],
    device: torch.device,
    dtype: torch.dtype,
    *,
    for_inference: bool = False,
) -> frozenset[str]:
    """Return the names of the kernels to use.

    Args:
        mode: value of ``train.kernels`` or ``inference.kernels``.
        offered: names of the kernels that the model and the run can compute with.
        device: device of this process. Without CUDA, no kernel is used.
        dtype: type of matrix products. Only bf16 has kernels.
        for_inference: whether there is no backward pass.
    """
    if mode == "off" or device.type != "cuda" or dtype != torch.bfloat16:
        return frozenset()
    has_triton = find_spec("triton") is not None
    chosen: set[str] = set()
    for name in offered:
        kernel = KERNELS[name]
        is_wanted = mode == "on" or kernel.in_auto
        is_possible = has_triton or not kernel.needs_triton
        serves = kernel.for_inference or not for_inference
        if is_wanted and is_possible and serves:
            chosen.add(name)
    return frozenset(chosen)


def keeps_gradients(names: Iterable[str]) -> bool:
    """Return whether one of these kernels needs gradients that keep their places in memory."""
    return any(KERNELS[name].keeps_gradients for name in names)


def agreed(problems: Mapping[str, str], here: Processes | None = None) -> dict[str, str]:
    """Return the problems of kernels that any process has found, the same on all processes.

    The first process prints a warning for each of them. Every process calls this.

    Args:
        problems: problem of each kernel that must not be used, by the kernel's name.
        here: this process, if there are several.
    """
    found: list[Mapping[str, str]] = [problems]
    if here is not None:
        found = [{} for _ in range(here.world_size)]
        dist.all_gather_object(found, dict(problems), group=here.control)
    together: dict[str, str] = {}
    for one in found:
        for name, problem in one.items():
            together.setdefault(name, problem)
    if here is None or here.is_first:
        for name, problem in together.items():
            print(
                f"warning: kernel {name} ({KERNELS[name].summary}) is not used: {problem}; torch's own "
                "kernels compute in its place",
                file=sys.stderr,
            )
    return together


def listed(names: Iterable[str]) -> str:
    """Return names in the order of the table, for the log and for results; ``none`` for an empty set."""
    given = set(names)
    return ", ".join(name for name in KERNELS if name in given) or "none"
