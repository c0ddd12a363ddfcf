"""Machine and versions, which every line of a benchmark repeats."""

import platform
import re
from pathlib import Path
from typing import Any

import torch

from seqlm.training.hardware import environment


def machine(device: torch.device) -> dict[str, Any]:
    """Return the device, the processor, the commit and the versions of packages."""
    found = environment(device)
    gpu = found.pop("device")
    commit = found.pop("git_sha") or "unknown"
    processor = _processor()
    return {
        "device": gpu if device.type == "cuda" else processor,
        "processor": processor,
        "commit": commit,
        "versions": found,
    }


def _processor() -> str:
    """Return name, family and model, because virtual machines give one name to several generations."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.is_file() else ""
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    name = found.get("model name", platform.machine())
    if "cpu family" not in found:
        return name
    return f"{name}, family {found['cpu family']}, model {found['model']}"
