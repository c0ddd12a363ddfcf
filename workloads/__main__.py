"""``python -m workloads --version`` prints the versions that a result depends on.

The list goes from the code down to the network's libraries. ``--write-schema`` writes the JSON schema of run
files, which editors use to complete them.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from workloads.run_file import RunFile
from workloads.run_schema import SCHEMA_FILE, json_schema
from workloads.stages import STAGES
from workloads.training.whole_file import write_whole

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


def main() -> None:
    modules = [*(stage.module for stage in STAGES.values()), "workloads.report", "workloads.esm2.serving"]
    parser = argparse.ArgumentParser(
        prog="python -m workloads",
        description="Training and use of protein models. Each stage is a module with its own --help.",
        epilog="stages:\n" + "\n".join(f"  python -m {module}" for module in modules),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the software stack and stop")
    parser.add_argument("--write-schema", action="store_true", help="write the JSON schema of run files")
    options = parser.parse_args()
    if options.write_schema:
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Run"}
        write_whole(SCHEMA_FILE, json.dumps(schema | json_schema(RunFile), indent=1) + "\n")
        print(os.path.relpath(SCHEMA_FILE))
    if not options.version:
        if not options.write_schema:
            parser.print_help()
        return
    stack = software_stack()
    width = max(map(len, stack))
    for name, found in stack.items():
        print(f"{name:{width}}  {found or 'not found'}")


if __name__ == "__main__":
    main()
