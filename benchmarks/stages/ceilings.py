"""Stage 0: what is installed, and the fastest products and copies of the device."""

import os
import shutil
import sysconfig
from collections.abc import Callable
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import Case, Line, Settings
from benchmarks.figures import DTYPES, precisions_of
from seqlm.proteins.families.esm2.facts import ESM2

PACKAGES = ("accelerate", "bitsandbytes", "peft", "pyarrow", "safetensors", "triton")
SIZES = ("8M", "650M", "3B")


def cases(settings: Settings) -> list[Case]:
    return [Case("ceilings", "-", "machine", "all", 30)]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Measure products of (tokens, inner size) by (inner size, columns), and copies.

    The verdict is ``missed`` on a GPU where nothing can be compiled, because Triton finds no C compiler or no
    Python headers.
    """
    device = settings.device
    is_cuda = device.type == "cuda"
    largest, tokens, size, seconds = (8192, 16384, 1 << 30, 0.5) if is_cuda else (256, 16, 1 << 20, 0.01)
    shapes = {"largest": (largest, largest, largest)}
    for name in SIZES:
        hidden = ESM2.sizes[name].hidden
        for part, inner, columns in (("q, k, v", 1, 3), ("projection", 1, 1), ("in", 1, 4), ("out", 4, 1)):
            shapes[f"{name} {part}"] = (tokens, inner * hidden, columns * hidden)
    dtype = DTYPES[precisions_of(device)[0]]
    rates = {}
    for name, (rows, inner, columns) in shapes.items():
        left = torch.randn(rows, inner, device=device).to(dtype)
        product = partial(torch.mm, left, torch.randn(inner, columns, device=device).to(dtype))
        rates[name] = 2 * rows * inner * columns / _seconds(product, seconds)
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * size / _seconds(lambda: target.copy_(source), seconds)
    compiler = shutil.which(os.environ.get("CC", "cc"))
    has_headers = (Path(sysconfig.get_path("include")) / "Python.h").exists()
    return {
        "c_compiler": compiler,
        "python_h": has_headers,
        "packages": {found.name: found.version for found in distributions() if found.name in PACKAGES},
        "memory_gb": torch.cuda.get_device_properties(device).total_memory / 1e9 if is_cuda else None,
        "products_flops_per_second": rates,
        "copy_bytes_per_second": copied,  # read and written
        "verdict": "missed" if is_cuda and not (compiler and has_headers) else "measured",
    }


def _seconds(function: Callable[[], object], least: float) -> float:
    """Mean wall seconds of a call, over at least so many seconds, until the device is done."""
    # It needs setuptools, which the other stages do without.
    from torch.utils.benchmark import Timer

    timer = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=least).mean


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per product, the largest first, and one for copies."""
    figures = lines[-1]["figures"]
    products = figures["products_flops_per_second"]
    return [
        *({"product": name, "TFLOP/s": f"{rate / 1e12:,.1f}"} for name, rate in products.items()),
        {"product": "copies (TB/s)", "TFLOP/s": f"{figures['copy_bytes_per_second'] / 1e12:.2f}"},
    ]
