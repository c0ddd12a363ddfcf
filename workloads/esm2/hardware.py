"""What the run stands on: arithmetic type, peak rate, memory, versions."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from . import xla
from .config import TrainConfig
from .finetune.four_bit import FourBitLinear
from .layered_model import LayeredModel
from .peak_rates import PEAK_BF16_FLOPS


def compute_dtype(train: TrainConfig, device: torch.device) -> torch.dtype:
    """Type of matrix products: ``auto`` is bf16 on GPUs, on Trainium and on CPUs that multiply it natively.

    Raises:
        ValueError: for a GPU older than flash attention and bf16 (compute capability 8.0, A100).
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        raise ValueError(
            f"{torch.cuda.get_device_name(device)} has no bf16 arithmetic; use a GPU of compute capability "
            "8.0 or later (A10G, A100, L4, L40S, H100, ...), or hide it with CUDA_VISIBLE_DEVICES= to run "
            "on the CPU"
        )
    if train.precision == "fp32":
        return torch.float32
    if train.precision == "bf16" or device.type == "cuda" or xla.is_neuron(device):
        return torch.bfloat16
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32


def compiles(train: TrainConfig, device: torch.device) -> bool:
    """Whether layers are compiled: ``auto`` is on for CUDA where Triton finds the C compiler it needs."""
    if train.compile != "auto":
        return train.compile == "on"
    if device.type != "cuda":
        return False
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if shutil.which(os.environ.get("CC", "cc")) and headers.exists():
        return True
    print(
        "warning: torch.compile is off: it needs a C compiler and Python's headers "
        "(Debian/Ubuntu: apt-get install gcc python3.11-dev)",
        file=sys.stderr,
    )
    return False


def num_flops(model: LayeredModel, num_residues: int, num_attended_pairs: int) -> float:
    """Model FLOPs of forward and backward pass over real residues: 6 N per residue, and those of each pair.

    N counts parameters without the embedding; a pair is two positions of one protein, so attention enters
    with the sum of squared lengths (Chowdhery et al. 2022, appendix B: 12 L h for full attention). Of a
    frozen parameter the product for its gradient falls away, which leaves 4. Padding is not counted, nor is
    anything recomputed; that the last layer skips tokens nobody predicts is not deducted.
    """
    per_residue = 0
    quantized = {
        f"{name}.weight": module.in_features * module.out_features
        for name, module in model.named_modules()
        if isinstance(module, FourBitLinear)
    }
    for name, parameter in model.named_parameters():
        if not any(part in name for part in model.uncounted):
            count = quantized.get(name, parameter.numel())
            per_residue += count * (6 if parameter.requires_grad else 4)
    return float(per_residue) * num_residues + model.flops_per_pair * num_attended_pairs


def peak_flops(device: torch.device) -> float | None:
    """bf16 FLOP/s of one device, None where it is not known (and on CPUs)."""
    if device.type == "xla":
        return xla.peak_flops(device)
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """Peak of a GPU by its name, such as ``NVIDIA A100-SXM4-80GB``; None for one that is not listed."""
    if re.search(r"PCIe|NVL", name):
        return None  # lower clocks than the SXM boards of the table
    return next((peak for part, peak in PEAK_BF16_FLOPS.items() if re.search(rf"\b{part}\b", name)), None)


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory in use so far: allocated by torch on CUDA, resident in this process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def environment(device: torch.device) -> dict[str, Any]:
    """Hardware and versions, for reports and benchmark results."""
    is_cuda = device.type == "cuda"
    return {
        "device": _name(device),
        "cpu_cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_xla": xla.version(device),
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda if is_cuda else None,
        "git_sha": git_sha(),
    }


def git_sha() -> str | None:
    """Commit of the code: GIT_SHA where an image sets it, else that of the checkout."""
    if "GIT_SHA" in os.environ:
        return os.environ["GIT_SHA"]
    here = Path(__file__).parent
    try:
        shown = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return shown.stdout.strip()


def _name(device: torch.device) -> str:
    if device.type == "xla":
        return xla.device_name()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
