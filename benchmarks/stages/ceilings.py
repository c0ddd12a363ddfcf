"""Stage 0: what is installed, and the fastest products and copies of the device."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import torch

from benchmarks.case import Case, Line, Settings
from benchmarks.figures import DTYPES, precisions_of, product_rate, repeated
from workloads.esm2.shapes import SHAPES

PACKAGES = (
    "accelerate",
    "bitsandbytes",
    "numpy",
    "peft",
    "pyarrow",
    "safetensors",
    "torch",
    "transformers",
    "triton",
)
SIZES = ("8M", "650M", "3B")
TOKENS = 16384
LARGEST = 8192
COPY_BYTES = 1 << 30
SECONDS = 0.5


def cases(settings: Settings) -> list[Case]:
    return [Case("ceilings", "-", "machine", "all", 30)]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Products by (tokens, inner size, columns), in FLOP/s.

    The verdict is ``missed`` on a GPU where nothing can be compiled, because Triton finds no C compiler or no
    Python headers.
    """
    device = settings.device
    is_cuda = device.type == "cuda"
    largest, tokens, size = (LARGEST, TOKENS, COPY_BYTES) if is_cuda else (256, 16, 1 << 20)
    seconds = SECONDS if is_cuda else 0.01
    dtype = DTYPES[precisions_of(device)[0]]
    shapes = {"largest": (largest, largest, largest)}
    for name in SIZES:
        hidden = SHAPES[name][1]
        shapes |= {
            f"{name} query, key, value": (tokens, hidden, 3 * hidden),
            f"{name} projection": (tokens, hidden, hidden),
            f"{name} feed-forward in": (tokens, hidden, 4 * hidden),
            f"{name} feed-forward out": (tokens, 4 * hidden, hidden),
        }
    products = {name: product_rate(shape, dtype, device, seconds) for name, shape in shapes.items()}
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copies = 2 * size / repeated(lambda: target.copy_(source), device, seconds)
    found: dict[str, Any] = {
        "c_compiler": shutil.which(os.environ.get("CC", "cc")),
        "python_h": (Path(sysconfig.get_path("include")) / "Python.h").exists(),
        "packages": {name: _version(name) for name in PACKAGES},
        "products_flops_per_second": products,
        "copy_bytes_per_second": copies,  # read and written
    }
    if is_cuda:
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "memory_gb": properties.total_memory / 1e9,
            "multiprocessors": properties.multi_processor_count,
        }
    compiles = found["c_compiler"] and found["python_h"]
    return {**found, "verdict": "missed" if is_cuda and not compiles else "measured"}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per product, the largest first, and one for copies."""
    figures = lines[-1]["figures"]
    products = figures["products_flops_per_second"]
    return [
        *({"product": name, "TFLOP/s": f"{rate / 1e12:,.1f}"} for name, rate in products.items()),
        {"product": "copies (TB/s)", "TFLOP/s": f"{figures['copy_bytes_per_second'] / 1e12:.2f}"},
    ]
