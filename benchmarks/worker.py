"""Process that runs cases of the acceptance run, as its parent asks.

The parent sends a request as a line of JSON on standard input, and gets answers as lines of JSON on a pipe of
its own, because libraries print to the standard output. Requests are ``describe``, ``warm`` and ``run``. An
answer is ``done``, or ``partial`` with the figures of a case that is not yet done.
"""

import gc
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO, cast

import torch
import torch._dynamo.config

from benchmarks.case import (
    Case,
    Settings,
    Stage,
    ignore,
    is_out_of_memory,
    prepare_unless_there,
    say,
)
from benchmarks.contestant import use_one_device
from benchmarks.ours import wanted_kernels

BYTES_PER_GIGABYTE = 1e9
RECOMPILE_LIMIT = 64
"""Most graphs of the layers of one process."""


def main(arguments: Sequence[str]) -> None:
    """Answer requests until standard input ends.

    Args:
        arguments: number of the pipe for answers, and options of the acceptance run as JSON.
    """
    descriptor, text = arguments
    answers = os.fdopen(int(descriptor), "w")
    settings = _settings(json.loads(text), answers)
    # Cases of one process have layers of several shapes. Beyond torch's default of 8 graphs, layers would not
    # be compiled.
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    for request in sys.stdin:
        asked = json.loads(request)
        if asked["kind"] == "describe":
            found = describe(asked["stages"], settings)
        elif asked["kind"] == "warm":
            found = warm(asked["case"], settings)
        else:
            found = run(asked["case"], settings)
        _send(answers, "done", found)


def _send(answers: TextIO, kind: str, figures: dict[str, Any]) -> None:
    answers.write(json.dumps({"kind": kind, "figures": figures}) + "\n")
    answers.flush()


def _settings(options: dict[str, Any], answers: TextIO) -> Settings:
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    return Settings(
        data=Path(options["data"]),
        device=device,
        rehearsal=options["rehearsal"],
        lines=tuple(Path(file) for file in options["lines"]),
        window=options["window"][device.type],
        kernels=options["kernels"],
        record=partial(_send, answers, "partial"),
    )


def describe(stages: Sequence[str], settings: Settings) -> dict[str, Any]:
    """Return the machine and the cases of stages, and prepare the data.

    Returns:
        ``machine``, which each line repeats, ``gigabytes`` of the GPU's memory, None without one, and
        ``cases``. ``problem`` has a mistake in the options.
    """
    try:
        wanted_kernels(settings.kernels)
    except ValueError as error:
        return {"problem": str(error)}
    prepare_unless_there(settings.data)
    gigabytes = None
    if settings.device.type == "cuda":
        properties = torch.cuda.get_device_properties(settings.device)
        gigabytes = properties.total_memory / BYTES_PER_GIGABYTE
    cases = [asdict(case) for name in stages for case in _cases(name, settings)]
    return {"machine": _machine(settings), "gigabytes": gigabytes, "cases": cases}


def _cases(name: str, settings: Settings) -> list[Case]:
    """Return a stage's cases. A stage that cannot be imported has one case, which fails in the same way."""
    try:
        return _stage(name).cases(settings)
    except Exception as error:
        say(f"{name}: {type(error).__name__}: {error}")
        return [Case(stage=name, size="-", contestant="-", shape="-", seconds=1)]


def _stage(name: str) -> Stage:
    return cast(Stage, import_module(f"benchmarks.stages.{name}"))


def _machine(settings: Settings) -> dict[str, Any]:
    from benchmarks.machine import machine  # imports transformers

    return {
        **machine(settings.device),
        "data": str(settings.data),
        "rehearsal": settings.rehearsal,
        "window": settings.window,
        "kernels": settings.kernels,
    }


def warm(wanted: str, settings: Settings) -> dict[str, Any]:
    """Compile whatever a case compiles, by running it with the shortest windows, and free its memory."""
    run(wanted, replace(settings, is_warm_up=True, record=ignore))
    gc.collect()
    if settings.device.type == "cuda":
        torch.cuda.empty_cache()
    return {}


def run(wanted: str, settings: Settings) -> dict[str, Any]:
    """Run a case in this process and return its figures."""
    use_one_device()
    name = wanted.partition("/")[0]
    stage = _stage(name)
    case = next(case for case in stage.cases(settings) if case.id == wanted)
    try:
        return stage.run(case, settings)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        traceback.print_exc()
        return {"verdict": "out of memory", "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main(sys.argv[1:])
