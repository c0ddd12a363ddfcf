"""Properties of a run's hardware and software: FLOPs, peak and measured rates, memory, versions."""

import mmap
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

from seqlm.training.adapters.four_bit import FourBitLinear

from .config import TrainConfig
from .device_runtime import runtime_of
from .layered_model import LayeredModel
from .peak_rates import PEAK_BF16_FLOPS

TIMEOUT_SECONDS = 10
"""Timeout of a command that prints a version."""
AMAZON = Path("/opt/amazon")
"""Folder into which the EFA installer installs."""
PACKAGES = ("transformers", "tokenizers", "numpy", "pyarrow")


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


def num_flops(model: LayeredModel, num_record_tokens: int, num_attended_pairs: int) -> float:
    """Model FLOPs of forward and backward pass over real residues: 6 N per residue, and those of each pair.

    N counts parameters without the embedding; a pair is two positions of one protein, so attention enters
    with the sum of squared lengths (Chowdhery et al. 2022, appendix B: 12 L h for full attention). Of a
    frozen parameter the product for its gradient falls away, which leaves 4. Padding is not counted, nor is
    anything recomputed; that the last layer skips tokens without a prediction is not deducted.
    """
    per_token = 0
    quantized = {
        f"{name}.weight": module.in_features * module.out_features
        for name, module in model.named_modules()
        if isinstance(module, FourBitLinear)
    }
    for name, parameter in model.named_parameters():
        if not any(part in name for part in model.uncounted):
            per_token += quantized.get(name, parameter.numel()) * (6 if parameter.requires_grad else 4)
    return float(per_token) * num_record_tokens + model.flops_per_pair * num_attended_pairs


def executed_flops(
    model: LayeredModel,
    num_tokens: int,
    num_rows: int | None,
    num_attended_pairs: int,
    *,
    recomputed: bool,
    on_cpu: bool,
) -> float:
    """FLOPs of the products that are made over ``num_tokens`` of packs, padding included.

    Chowdhery et al. 2022, appendix B (hardware FLOPs utilization): unlike ``num_flops``, they include what is
    ``recomputed`` (the forward pass of the layers) and leave out what is skipped. Parts run on ``num_rows``
    predicted tokens alone, and on CPUs the last layer has queries of these alone. Products over the
    vocabulary are not counted. With None as ``num_rows``, nothing is skipped. I inputs and O outputs take
    2 I O a token for the output, for the gradient of the input and, unless frozen, for that of the matrix.
    """
    rows = num_tokens if num_rows is None else num_rows
    flops = model.flops_per_pair * num_attended_pairs * (4 / 3 if recomputed else 1)
    on_rows, uncounted = model.on_rows, model.uncounted
    if num_rows is not None:
        uncounted += model.on_vocabulary
    if on_cpu and model.queries_on_rows:
        on_rows += model.queries_on_rows
        flops *= 1 - (1 - rows / max(1, num_tokens)) / len(model.layers)
    in_layers = {id(module) for module in model.layers.modules()}
    for name, module in model.named_modules():
        is_on_rows = any(part in name for part in on_rows)
        is_counted = is_on_rows or not any(part in name for part in uncounted)
        if is_counted and isinstance(module, (nn.Linear, FourBitLinear)):
            passes = 2 + module.weight.requires_grad + (recomputed and id(module) in in_layers)
            tokens = rows if is_on_rows else num_tokens
            flops += 2.0 * passes * module.in_features * module.out_features * tokens
    return flops


def peak_flops(device: torch.device) -> float | None:
    """bf16 FLOP/s of one device, None where it is not known (and on CPUs)."""
    if device.type != "cuda":
        return runtime_of(device).peak_flops()
    name = torch.cuda.get_device_name(device)  # such as NVIDIA A100-SXM4-80GB
    if re.search(r"PCIe|NVL", name):
        return None  # lower clocks than the SXM boards of the table
    return next((peak for part, peak in PEAK_BF16_FLOPS.items() if re.search(rf"\b{part}\b", name)), None)


def matmul_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOP/s of a large square product, the most that products reach on a device.

    The best of three: of 8192 rows on CUDA, on a CPU of as many as take 20 ms.
    """
    # Ten in a row hide the time of a launch behind products of 1.4 ms.
    side, times = (8192, 10) if device.type == "cuda" else (256, 1)
    while True:
        # Random numbers: on zeros and ones a GPU draws less power, and its clock is higher.
        random = torch.Generator(device).manual_seed(0)
        a, b = (torch.randn(side, side, device=device, generator=random).to(dtype) for _ in range(2))
        out, rounds = torch.empty_like(a), []
        for _ in range(4):  # the first makes the kernel
            _wait_for(device)
            started = time.perf_counter()
            for _ in range(times):
                torch.mm(a, b, out=out)
            _wait_for(device)
            rounds.append((time.perf_counter() - started) / times)
        if min(rounds) > 0.02 or side == 8192:
            return 2 * side**3 / min(rounds)
        side *= 2


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory in use so far: allocated by torch on CUDA, resident in this process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def environment(device: torch.device) -> dict[str, Any]:
    """Hardware and versions, for reports and benchmark results."""
    return {
        "device": runtime_of(device).name() or cpu_name(),
        "cpu_cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_xla": metadata.version("torch_xla") if device.type == "xla" else None,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "git_sha": git_sha(),
    }


def software_stack(amazon: Path = AMAZON) -> dict[str, str | None]:
    """Return versions that a result depends on, from the code down to the network's libraries, by name.

    None stands for software that this machine lacks, such as EFA on a laptop.
    """
    drivers = printed(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]) or ""
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    # The NCCL that torch is linked with; builds for CPUs have none.
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
    fi_info = printed([str(amazon / "efa/bin/fi_info"), "--version"]) or ""
    return {
        "code": git_sha(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(cudnn) if cudnn else None,
        "nccl": ".".join(map(str, nccl)) or None,
        "driver": next(iter(drivers.splitlines()), None),  # one line per GPU
        # The installer writes a list of its packages, whose first line has its version.
        "efa_installer": _in_file(amazon / "efa_installed_packages", rb"EFA installer version:\s*(\S+)"),
        "libfabric": found[1] if (found := re.search(r"(?m)^libfabric:\s*(\S+)", fi_info)) else None,
        # The plugin prints this text when it starts. It has no option that prints the version.
        "aws_ofi_nccl": _in_file(amazon / "ofi-nccl/lib/libnccl-net-ofi.so", rb"aws-ofi-nccl (\d[\w.+-]*)"),
        "nccl_net_plugin": os.environ.get("NCCL_NET_PLUGIN"),
        **{name: _package(name) for name in PACKAGES},
    }


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _in_file(path: Path, pattern: bytes) -> str | None:
    """Return the group of a pattern in a file; None if the file is missing or empty."""
    if not path.is_file() or path.stat().st_size == 0:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        found = re.search(pattern, contents)
        return found[1].decode() if found else None


def git_sha() -> str | None:
    """Return the commit of the code: GIT_SHA if an image sets it, else the commit of the checkout."""
    if "GIT_SHA" in os.environ:
        return os.environ["GIT_SHA"]
    if not (Path(__file__).parents[3] / ".git").exists():
        return None  # an installed package may lie in somebody else's repository
    return printed(["git", "rev-parse", "HEAD"], Path(__file__).parent)


def printed(command: list[str], folder: Path | None = None) -> str | None:
    """Return what a command prints, None if it is missing or fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def cpu_name() -> str:
    """Name of the processor, as its maker gives it on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
