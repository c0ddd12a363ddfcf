"""Work in a process of its own, so that its memory and processor time are its own."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.stages.data import core_seconds

KIB_PER_MIB = 1024
STATUS_FILE = Path("/proc/self/status")
RESULT = "growth result: "
"""Start of the line with the result, because libraries print to the standard output, too."""


@dataclass(frozen=True)
class Finished:
    """Work that has ended."""

    cpu_seconds: float
    """Processor time of the work and its children, without imports."""
    peak_mib: float
    """Largest resident memory of the process, with Python and its packages."""
    result: Any
    """JSON value that the function returned."""


def run_apart(function: Callable[..., Any], *arguments: Any) -> Finished:
    """Run a function of a module with JSON values as arguments in a new process.

    Raises:
        RuntimeError: if the process fails.
    """
    return run_target(f"{function.__module__}:{function.__name__}", *arguments)


def run_target(target: str, *arguments: Any, python_path: Sequence[Path] = ()) -> Finished:
    """Run a function in a new process.

    Args:
        target: module and function, such as ``benchmarks.growth.node_users:count_programs``.
        arguments: JSON values.
        python_path: folders that the process also imports from.

    Raises:
        RuntimeError: if the process fails.
    """
    command = [sys.executable, "-m", "benchmarks.growth.processes", target, json.dumps(arguments)]
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [*map(str, python_path), inherited]))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{target}: got exit status {done.returncode}; its errors are above")
    [line] = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    return Finished(**json.loads(line.removeprefix(RESULT)))


def _peak_mib() -> float:
    """Return the largest resident memory of this process.

    ``getrusage`` would return that of the parent if it is larger, because a new process starts as its copy.
    """
    [peak] = re.findall(r"^VmHWM:\s+(\d+) kB$", STATUS_FILE.read_text(), re.MULTILINE)
    return int(peak) / KIB_PER_MIB


def main(arguments: Sequence[str]) -> None:
    target, text = arguments
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    before = core_seconds()
    result = function(*json.loads(text))
    found = Finished(core_seconds() - before, _peak_mib(), result)
    print(f"{RESULT}{json.dumps(asdict(found))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
