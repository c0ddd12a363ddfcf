"""Versions that a result depends on, from the code down to the network's libraries (``seqlm --version``)."""

import mmap
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

AMAZON = Path("/opt/amazon")
"""Folder into which the EFA installer installs."""
PACKAGES = ("transformers", "tokenizers", "numpy", "pyarrow")


def software_stack(amazon: Path = AMAZON) -> dict[str, str | None]:
    """Return versions by name; None for software that this machine lacks, such as EFA on a laptop."""
    import torch

    from workloads.training.hardware import git_sha, printed

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
        return version(name)
    except PackageNotFoundError:
        return None


def _in_file(path: Path, pattern: bytes) -> str | None:
    """Return the group of a pattern in a file; None if the file is missing or empty."""
    if not path.is_file() or path.stat().st_size == 0:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        found = re.search(pattern, contents)
        return found[1].decode() if found else None
