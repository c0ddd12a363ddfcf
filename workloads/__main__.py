"""``python -m workloads --version`` prints the versions that a result depends on.

They go from the code down to the network's libraries. ``--write-schema`` writes the JSON schema of run files,
from which editors complete them.
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
"""Where the EFA installer puts what it installs."""
PACKAGES = ("transformers", "tokenizers", "numpy", "pyarrow")


def software_stack(amazon: Path = AMAZON) -> dict[str, str | None]:
    """Versions by name; None for what is not on this machine, as EFA on a laptop."""
    import torch

    from workloads.training.hardware import git_sha

    return {
        "code": git_sha(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _cudnn(),
        "nccl": _nccl(),
        "driver": _driver(),
        "efa_installer": _efa_installer(amazon / "efa_installed_packages"),
        "libfabric": _libfabric(amazon / "efa/bin/fi_info"),
        "aws_ofi_nccl": _plugin(amazon / "ofi-nccl/lib/libnccl-net-ofi.so"),
        "nccl_net_plugin": os.environ.get("NCCL_NET_PLUGIN"),
        **{name: _package(name) for name in PACKAGES},
    }


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cudnn() -> str | None:
    import torch

    found = torch.backends.cudnn.version() if torch.version.cuda else None
    return str(found) if found else None


def _nccl() -> str | None:
    """The one that torch is linked with; builds for CPUs have none."""
    import torch

    if not torch.distributed.is_nccl_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _driver() -> str | None:
    from workloads.training.hardware import printed

    found = printed(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return found.splitlines()[0] if found else None  # a line for each GPU


def _efa_installer(record: Path) -> str | None:
    """From the list that the installer leaves: its first line names its version."""
    if not record.is_file():
        return None
    found = re.search(r"EFA installer version:\s*(\S+)", record.read_text(errors="replace"))
    return found[1] if found else None


def _libfabric(fi_info: Path) -> str | None:
    from workloads.training.hardware import printed

    found = re.search(r"^libfabric:\s*(\S+)", printed([str(fi_info), "--version"]) or "", re.MULTILINE)
    return found[1] if found else None


def _plugin(library: Path) -> str | None:
    """From the text with which the plugin announces itself: it has no other way to be asked."""
    if not library.is_file() or library.stat().st_size == 0:
        return None
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        found = re.search(rb"aws-ofi-nccl (\d[\w.+-]*)", contents)
        return found[1].decode() if found else None


def _modules() -> list[str]:
    stages = [stage.module for stage in STAGES.values()]
    return [*stages, "workloads.report", "workloads.esm2.serving"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workloads",
        description="Training and use of protein models. Each stage is a module with its own --help.",
        epilog="stages:\n" + "\n".join(f"  python -m {module}" for module in _modules()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the software stack and stop")
    parser.add_argument("--write-schema", action="store_true", help="write the JSON schema of run files")
    options = parser.parse_args()
    if options.write_schema:
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Run"}
        write_whole(SCHEMA_FILE, json.dumps(schema | json_schema(RunFile), indent=1) + "\n")
        print(SCHEMA_FILE)
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
