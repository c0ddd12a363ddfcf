"""Stage 0: installed packages, and the fastest products and copies of the device."""

import os
import shutil
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
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
"""Sizes of ESM-2 with measured products."""


@dataclass(frozen=True)
class Extent:
    """Amount of measured work."""

    largest: int
    """Rows, columns and inner size of the largest product."""
    tokens: int
    """Rows of the products of a model."""
    copied_bytes: int
    seconds: float
    """Least time of each measurement."""


GPU = Extent(largest=8192, tokens=16384, copied_bytes=1 << 30, seconds=0.5)
CPU = Extent(largest=256, tokens=16, copied_bytes=1 << 20, seconds=0.01)


def cases(settings: Settings) -> list[Case]:
    return [Case("ceilings", "-", "machine", "all", seconds=25, gigabytes=4)]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Measure products of (tokens, inner size) by (inner size, columns), and copies.

    The verdict is ``missed`` on a machine with a GPU if nothing can be compiled, because Triton finds no C
    compiler or no Python headers.
    """
    device = settings.device
    is_cuda = device.type == "cuda"
    extent = GPU if is_cuda else CPU
    # Rows, inner size and columns of each product.
    shapes = {"largest": (extent.largest, extent.largest, extent.largest)}
    for name in SIZES:
        hidden = ESM2.sizes[name].hidden
        shapes[f"{name} q, k, v"] = (extent.tokens, hidden, 3 * hidden)
        shapes[f"{name} projection"] = (extent.tokens, hidden, hidden)
        shapes[f"{name} in"] = (extent.tokens, hidden, 4 * hidden)
        shapes[f"{name} out"] = (extent.tokens, 4 * hidden, hidden)
    dtype = DTYPES[precisions_of(device)[0]]
    rates: dict[str, float] = {}
    for name, (rows, inner, columns) in shapes.items():
        left = torch.randn(rows, inner, device=device).to(dtype)
        right = torch.randn(inner, columns, device=device).to(dtype)
        product = partial(torch.mm, left, right)
        rates[name] = 2 * rows * inner * columns / _seconds(product, extent.seconds)
    source = torch.empty(extent.copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # Each byte is read and written.
    copied = 2 * extent.copied_bytes / _seconds(lambda: target.copy_(source), extent.seconds)
    compiler = shutil.which(os.environ.get("CC", "cc"))
    has_headers = (Path(sysconfig.get_path("include")) / "Python.h").exists()
    return {
        "c_compiler": compiler,
        "python_h": has_headers,
        "packages": {
            found.name: found.version for found in distributions() if found.name in PACKAGES
        },
        "memory_gb": torch.cuda.get_device_properties(device).total_memory / 1e9
        if is_cuda
        else None,
        "products_flops_per_second": rates,
        "copy_bytes_per_second": copied,
        "verdict": "missed" if is_cuda and not (compiler and has_headers) else "measured",
    }


def _seconds(function: Callable[[], object], least: float) -> float:
    """Return the mean wall time of a call in seconds, measured over at least ``least`` seconds."""
    # This import needs setuptools, which the other stages do not.
    from torch.utils.benchmark import Timer

    timer = Timer("function()", globals={"function": function}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=least).mean


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per product, the largest first, and one for copies."""
    figures = lines[-1]["figures"]
    found: list[dict[str, str]] = []
    for name, rate in figures["products_flops_per_second"].items():
        found.append({"product": name, "TFLOP/s": f"{rate / 1e12:,.1f}"})
    copies = figures["copy_bytes_per_second"]
    found.append({"product": "copies (TB/s)", "TFLOP/s": f"{copies / 1e12:.2f}"})
    return found
