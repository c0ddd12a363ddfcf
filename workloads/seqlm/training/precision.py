"""Type of matrix products: that of ``train.precision``, or the one that ``auto`` selects on a device."""

import json
import math
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from seqlm.training.data.locks import cache_folder

from .config import TrainConfig
from .device_runtime import runtime_of
from .hardware import cpu_name
from .processes import Processes
from .whole_file import write_whole

MIN_SPEEDUP = 1.2
"""Speed of bf16 over fp32 from which ``auto`` selects bf16 on a CPU. The measurement leaves out the casts."""
MEASURED_HIDDEN_SIZE = 320
"""Hidden size of the layer that is measured, that of a model with 8 million parameters."""
MEASURED_HEADS = 20
"""Attention heads of the layer that is measured."""
MEASURED_ROUNDS = 4
"""Number of measurements, of which the fastest counts. The first one creates the kernels."""
PRECISION_FILE = "precision.json"
"""File in a run's folder with the type that ``auto`` selected for the run."""


class Precision(NamedTuple):
    """Type of matrix products. Operations between products are in fp32."""

    name: str
    """``bf16`` or ``fp32``."""
    reason: str
    """Reason for the selection, for messages."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.name == "bf16" else torch.float32

    def record(self) -> dict[str, str]:
        """Return the entries for the environment of results and checkpoints."""
        return {"precision": self.name, "precision_reason": self.reason}


def select_precision(
    train: TrainConfig,
    device: torch.device,
    here: Processes | None = None,
    run_dir: Path | None = None,
) -> Precision:
    """Select the type of matrix products.

    ``auto`` is bf16 on GPUs and on Trainium. On a CPU it is the faster type in a measurement.

    Args:
        train: section of the run file.
        device: device of this process.
        here: this process, if there are several. Every process calls this, and the first one decides.
        run_dir: folder of the run, which keeps the selection for later starts; None keeps none.

    Raises:
        ValueError: for a GPU older than flash attention and bf16 (compute capability 8.0, A100).
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise ValueError(
            f"{torch.cuda.get_device_name(device)} has no bf16 arithmetic; use a GPU of compute capability "
            "8.0 or later (A10G, A100, L4, L40S, H100, ...), or hide it with CUDA_VISIBLE_DEVICES= to run "
            "on the CPU"
        )
    is_first = here is None or here.is_first
    if train.precision != "auto":
        if is_first and device.type == "cuda" and train.precision == "fp32":
            print(
                "warning: in fp32, attention on a GPU is a slow loop over the records; "
                "use train.precision=bf16",
                file=sys.stderr,
            )
        return Precision(train.precision, "train.precision sets it")
    if device.type != "cpu":
        has_bf16 = runtime_of(device).has_bf16 or has_bf16_instructions()
        return Precision("bf16" if has_bf16 else "fp32", "it is the default on this device")
    if here is None:
        selected = _on_cpu(run_dir)
    else:
        shared = [here.first_does(partial(_on_cpu, run_dir))]
        dist.broadcast_object_list(shared, group=here.control)
        assert shared[0] is not None  # the first process returns one
        selected = shared[0]
    if is_first:
        print(f"precision: {selected.name}, because {selected.reason}", file=sys.stderr)
    return selected


def has_bf16_instructions() -> bool:
    """Return whether the processor multiplies bf16 natively. Others are a hundred times slower in torch."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _on_cpu(run_dir: Path | None) -> Precision:
    """Select the type that the run began with, or else one by the processor and a measurement."""
    stored = _read(run_dir / PRECISION_FILE) if run_dir else None
    if isinstance(stored, dict) and stored.get("precision") in ("bf16", "fp32"):
        return Precision(
            stored["precision"], f"the run began with it ({stored.get('precision_reason')})"
        )
    selected = Precision("fp32", "this processor has no bf16 instructions (avx512_bf16 or AMX)")
    if has_bf16_instructions():
        speedup = _cached_speedup()
        reason = f"bf16 products are {speedup:.2f} times as fast as fp32 on this processor"
        selected = Precision("bf16" if speedup >= MIN_SPEEDUP else "fp32", reason)
    if run_dir:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_whole(run_dir / PRECISION_FILE, json.dumps(selected.record()) + "\n")
    return selected


def _cached_speedup() -> float:
    """Return ``bf16_speedup``, measured once for each processor, version of torch and number of threads."""
    key = f"{cpu_name()} torch {torch.__version__} threads {torch.get_num_threads()}"
    file = cache_folder() / "bf16-speedup" / (re.sub(r"[^\w.+-]+", "_", key) + ".json")
    speedup = _read(file)
    if not isinstance(speedup, float) or not 0 < speedup < math.inf:
        speedup = bf16_speedup()
        with suppress(OSError):  # without a cache, the next start measures again
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(speedup))
    return speedup


def _read(file: Path) -> Any:
    """Return the content of a JSON file; None if it is missing or damaged."""
    with suppress(OSError, ValueError):
        return json.loads(file.read_text(encoding="utf-8"))
    return None


def bf16_speedup() -> float:
    """Measure the speed of bf16 over fp32 in the products of a small model's training.

    The products are those of the forward and backward pass of a layer over two records of 256 tokens. The
    types alternate, and this process's threads are used. The measurement takes a few tenths of a second.
    """
    shapes = _measured_products()
    shortest = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for _ in range(MEASURED_ROUNDS):
        for dtype in shortest:
            shortest[dtype] = min(shortest[dtype], _seconds_of(shapes, dtype))
    return shortest[torch.float32] / shortest[torch.bfloat16]


class _Product(NamedTuple):
    """Shape of a batch of products (rows, inner) x (inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int


def _measured_products() -> list[_Product]:
    hidden = MEASURED_HIDDEN_SIZE
    head_size = hidden // MEASURED_HEADS
    length = 256
    tokens = 2 * length
    # Inputs and outputs of the linear maps: queries, keys and values; attention output; feed-forward block.
    maps = [(hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)]
    products = []
    for inputs, outputs in maps:
        products.append(_Product(1, tokens, inputs, outputs))  # output
        products.append(_Product(1, tokens, outputs, inputs))  # gradient of the input
        products.append(_Product(1, outputs, tokens, inputs))  # gradient of the matrix
    # Attention has six products, two of them forward.
    products += 2 * [_Product(2 * MEASURED_HEADS, length, head_size, length)]
    products += 4 * [_Product(2 * MEASURED_HEADS, length, length, head_size)]
    return products


def _seconds_of(products: Sequence[_Product], dtype: torch.dtype) -> float:
    """Measure the time of products in one type."""
    # Ones, because random numbers would advance the generator that the run begins with.
    operands = [
        (
            torch.ones(product.batch, product.rows, product.inner, dtype=dtype),
            torch.ones(product.batch, product.inner, product.columns, dtype=dtype),
        )
        for product in products
    ]
    started = time.perf_counter()
    for left, right in operands:
        torch.bmm(left, right)
    return time.perf_counter() - started
