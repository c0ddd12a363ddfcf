"""Type of matrix products: what ``train.precision`` sets, or what ``auto`` selects on a device."""

import json
import math
import re
import sys
import time
from contextlib import suppress
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
"""Speed of bf16 over fp32 from which ``auto`` selects it on a CPU: products alone leave out the casts."""
MEASURED_SHAPE = (320, 20)
"""Hidden size and heads of the layer whose products are measured: those of ESM-2 8M."""
PRECISION_FILE = "precision.json"
"""File in a run's folder with what ``auto`` selected for the run."""


class Precision(NamedTuple):
    """Type of matrix products, ``bf16`` or ``fp32``, and why; what lies between products is fp32."""

    name: str
    reason: str

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.name == "bf16" else torch.float32

    def record(self) -> dict[str, str]:
        """Entries for the environment of results and checkpoints."""
        return {"precision": self.name, "precision_reason": self.reason}


def select_precision(
    train: TrainConfig, device: torch.device, here: Processes | None = None, run_dir: Path | None = None
) -> Precision:
    """Select the type of matrix products. Every process of ``here`` calls this and gets the first one's.

    ``auto`` is bf16 on GPUs and on Trainium. On a CPU it is measured, and kept in ``run_dir`` if given.

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
            text = "in fp32, attention on a GPU is a slow loop over the proteins; use train.precision=bf16"
            print(f"warning: {text}", file=sys.stderr)
        return Precision(train.precision, "train.precision sets it")
    if device.type != "cpu":
        has_bf16 = runtime_of(device).has_bf16 or has_bf16_instructions()
        return Precision("bf16" if has_bf16 else "fp32", "it is the default on this device")
    selected = [_on_cpu(run_dir) if is_first else Precision("", "")]
    if here is not None:
        dist.broadcast_object_list(selected, group=here.control)
    if is_first:
        print(f"precision: {selected[0].name}, because {selected[0].reason}", file=sys.stderr)
    return selected[0]


def has_bf16_instructions() -> bool:
    """Whether the processor multiplies bf16 natively; in torch, others are a hundred times slower in it."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _on_cpu(run_dir: Path | None) -> Precision:
    """Select what the run began with, else by the processor and a measurement."""
    before = _read(run_dir / PRECISION_FILE) if run_dir else None
    if isinstance(before, dict) and before.get("precision") in ("bf16", "fp32"):
        return Precision(before["precision"], f"the run began with it ({before.get('precision_reason')})")
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
    """``bf16_speedup``, measured once for each processor, version of torch and number of threads."""
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
    """Content of a JSON file; None if there is none or it is damaged."""
    with suppress(OSError, ValueError):
        return json.loads(file.read_text(encoding="utf-8"))
    return None


def bf16_speedup() -> float:
    """Measure how many times as fast as in fp32 the products of a training of the 8M model are in bf16.

    They are those of a layer's forward and backward pass over two proteins of 256 tokens, the types in turns,
    with the threads of this process; it takes a few tenths of a second.
    """
    hidden, heads = MEASURED_SHAPE
    matrices = ((hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden))
    # Batch, rows, inner size and columns: outputs, gradients of inputs, gradients of matrices.
    shapes = [s for i, o in matrices for s in ((1, 512, i, o), (1, 512, o, i), (1, o, 512, i))]
    shapes += 2 * [(2 * heads, 256, hidden // heads, 256)] + 4 * [(2 * heads, 256, 256, hidden // heads)]
    seconds = {torch.float32: math.inf, torch.bfloat16: math.inf}
    for _ in range(4):  # the first round makes the kernels
        for dtype in seconds:
            # Ones: random numbers would advance the generator that the run begins with.
            pairs = [
                (torch.ones(n, r, i, dtype=dtype), torch.ones(n, i, c, dtype=dtype)) for n, r, i, c in shapes
            ]
            started = time.perf_counter()
            for left, right in pairs:
                torch.bmm(left, right)
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - started)
    return seconds[torch.float32] / seconds[torch.bfloat16]
