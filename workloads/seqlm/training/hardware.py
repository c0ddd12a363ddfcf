"""Properties of a run's hardware and software: FLOPs, peak and measured rates, memory, versions."""

import math
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
"""Folder of the EFA installer's packages."""
PACKAGES = ("transformers", "tokenizers", "numpy", "pyarrow")
"""Python packages with versions in the software stack."""
MEASURED_SECONDS = 0.02
"""Shortest product on a CPU that measures its rate."""
LARGEST_SIDE = 8192
"""Rows of the largest square matrices that are multiplied to measure a rate."""
_SHARED_POOL = (0, 0)
"""Id of the memory that all operations but those of CUDA graphs use."""
FORWARD_BACKWARD_FLOPS = 6
"""FLOPs per parameter and token: 2 each for the output and for the gradients of input and parameter."""
FROZEN_FLOPS = 4
"""FLOPs per frozen parameter and token, without the gradient of the parameter."""


def compiles(train: TrainConfig, device: torch.device) -> bool:
    """Return whether layers are compiled: ``auto`` is on for CUDA if Triton finds a C compiler."""
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
    """Return the model FLOPs of a forward and backward pass, without padding.

    A token costs 6 N for N parameters without the embedding (Chowdhery et al. 2022, appendix B), or 4 N for
    frozen parameters, which need no gradient. A pair is two positions of one record, so attention enters with
    the sum of squared lengths (12 L h in appendix B, for full attention). Recomputed products are not added,
    and tokens that the last layer skips are not deducted.

    Args:
        model: model, quantized or not.
        num_record_tokens: number of tokens of the records.
        num_attended_pairs: sum of the squared segment lengths.
    """
    quantized = {
        f"{name}.weight": module.in_features * module.out_features
        for name, module in model.named_modules()
        if isinstance(module, FourBitLinear)
    }
    flops_per_token = 0
    for name, parameter in model.named_parameters():
        if any(part in name for part in model.uncounted):
            continue
        size = quantized.get(name, parameter.numel())
        flops_per_token += size * (
            FORWARD_BACKWARD_FLOPS if parameter.requires_grad else FROZEN_FLOPS
        )
    return float(flops_per_token) * num_record_tokens + model.flops_per_pair * num_attended_pairs


def executed_flops(
    model: LayeredModel,
    num_tokens: int,
    num_rows: int | None,
    num_attended_pairs: int,
    *,
    recomputed: bool,
    on_cpu: bool,
) -> float:
    """Return the FLOPs of the products that a forward and backward pass executes, padding included.

    These are hardware FLOPs (Chowdhery et al. 2022, appendix B). Unlike ``num_flops``, they include
    recomputed products and leave out skipped ones. Some parts run on the predicted tokens alone. On CPUs, the
    last layer has queries of these tokens alone. Products over the vocabulary are not counted. A matrix with
    I inputs and O outputs takes 2 I O per token for the output, for the gradient of the input and, unless
    frozen, for the gradient of the matrix.

    Args:
        model: model, quantized or not.
        num_tokens: number of tokens of the packs, padding included.
        num_rows: number of predicted tokens; None if no part skips tokens.
        num_attended_pairs: sum of the squared segment lengths.
        recomputed: whether the backward pass repeats the forward pass of the layers.
        on_cpu: whether the model runs on a CPU.
    """
    rows = num_tokens if num_rows is None else num_rows
    flops = model.flops_per_pair * num_attended_pairs * (4 / 3 if recomputed else 1)
    on_rows = model.on_rows
    uncounted = model.uncounted
    if num_rows is not None:
        uncounted += model.on_vocabulary
    if on_cpu and model.queries_on_rows:
        on_rows += model.queries_on_rows
        # Queries of the other tokens are missing in one layer of all.
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
    """Return the peak bf16 FLOP/s of one device; None for CPUs and unknown devices."""
    if device.type != "cuda":
        return runtime_of(device).peak_flops()
    name = torch.cuda.get_device_name(device)  # such as NVIDIA A100-SXM4-80GB
    if re.search(r"PCIe|NVL", name):
        return None  # these boards have lower clocks than the SXM boards of the table
    return next(
        (peak for part, peak in PEAK_BF16_FLOPS.items() if re.search(rf"\b{part}\b", name)), None
    )


def matmul_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOP/s of a large square product, the highest rate of products on a device.

    Matrices have 8192 rows on CUDA. On a CPU the number of rows is doubled until a product takes 20 ms.
    """
    if device.type == "cuda":
        # Ten products of 1.4 ms in a row hide the time of a launch.
        return 2 * LARGEST_SIDE**3 / _product_seconds(device, dtype, LARGEST_SIDE, repeats=10)
    side = 256
    while True:
        seconds = _product_seconds(device, dtype, side, repeats=1)
        if seconds > MEASURED_SECONDS or side == LARGEST_SIDE:
            return 2 * side**3 / seconds
        side *= 2


def _product_seconds(device: torch.device, dtype: torch.dtype, side: int, repeats: int) -> float:
    """Measure the shortest time of a product of square matrices."""
    # Random numbers: with zeros and ones a GPU draws less power, and its clock is higher.
    random = torch.Generator(device).manual_seed(0)
    a = torch.randn(side, side, device=device, generator=random).to(dtype)
    b = torch.randn(side, side, device=device, generator=random).to(dtype)
    out = torch.empty_like(a)
    shortest = math.inf
    for _ in range(4):  # the first round creates the kernel
        _wait_for(device)
        started = time.perf_counter()
        for _ in range(repeats):
            torch.mm(a, b, out=out)
        _wait_for(device)
        shortest = min(shortest, (time.perf_counter() - started) / repeats)
    return shortest


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory in use so far: allocated on CUDA, else resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) + _recorded_bytes(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _recorded_bytes(device: torch.device) -> int:
    """Return the memory that CUDA graphs keep for replays. The allocator counts most of it as unused."""
    index = torch.cuda.current_device() if device.index is None else device.index
    found = 0
    for segment in torch.cuda.memory_snapshot():
        is_shared = tuple(segment["segment_pool_id"]) == _SHARED_POOL
        if segment["device"] == index and not is_shared:
            found += segment["total_size"] - segment["allocated_size"]
    return found


def environment(device: torch.device) -> dict[str, Any]:
    """Return hardware and versions, for reports and benchmark results."""
    return {
        "device": runtime_of(device).name() or cpu_name(),
        "cpu_cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
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

    Args:
        amazon: folder of the EFA installer's packages.
    """
    drivers = printed(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]) or ""
    cudnn = torch.backends.cudnn.version() if torch.version.cuda else None
    # Version of the NCCL that torch is linked with; builds for CPUs have none.
    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
    fi_info = printed([str(amazon / "efa/bin/fi_info"), "--version"]) or ""
    libfabric = re.search(r"(?m)^libfabric:\s*(\S+)", fi_info)
    return {
        "code": git_sha(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(cudnn) if cudnn else None,
        "nccl": ".".join(map(str, nccl)) or None,
        "driver": next(iter(drivers.splitlines()), None),  # one line per GPU
        # The installer writes a list of its packages. The first line has its version.
        "efa_installer": _in_file(
            amazon / "efa_installed_packages", rb"EFA installer version:\s*(\S+)"
        ),
        "libfabric": libfabric[1] if libfabric else None,
        # The plugin prints this text when it starts. It has no option that prints the version.
        "aws_ofi_nccl": _in_file(
            amazon / "ofi-nccl/lib/libnccl-net-ofi.so", rb"aws-ofi-nccl (\d[\w.+-]*)"
        ),
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
        return None  # an installed package may be inside another repository
    return printed(["git", "rev-parse", "HEAD"], Path(__file__).parent)


def printed(command: list[str], folder: Path | None = None) -> str | None:
    """Return the output of a command; None if it is missing, fails or prints nothing."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def cpu_name() -> str:
    """Return the name of the processor, on Linux the maker's."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "CPU"
