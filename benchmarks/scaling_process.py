"""Process of the stage ``scaling`` on one GPU, started by torchrun with its options as JSON."""

import ctypes
import json
import math
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.contestant import synchronize
from benchmarks.ours import LEARNING_RATE, MAX_RESIDUES, wanted_kernels
from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import ModelConfig, RunFile
from seqlm.training.config import DataConfig, OptimConfig, ParallelConfig, TrainConfig
from seqlm.training.kernels import listed
from seqlm.training.processes import Processes, processes
from seqlm.training.trainer import Trainer

PR_SET_PDEATHSIG = 1
"""Linux's option by which a process gets a signal when its parent ends. torchrun starts sessions of their
own, which the end of the benchmark does not reach."""
Mode = Literal["ddp", "fsdp"]
WARMUP_STEPS = 3
COLLECTIVE = re.compile(r"^(?:nccl|gloo):")
"""Names of the profiler's events for messages between processes."""
BYTES = {
    "float": 4,
    "double": 8,
    "c10::BFloat16": 2,
    "c10::Half": 2,
    "long": 8,
    "long int": 8,
    "int": 4,
    "unsigned char": 1,
    "signed char": 1,
    "bool": 1,
}
"""Bytes of a number by the profiler's name of its type."""


class Event(Protocol):
    """Event of the profiler."""

    def name(self) -> str: ...

    def shapes(self) -> list[list[int]]: ...

    def dtypes(self) -> list[str]: ...


def main(text: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    options = json.loads(text)
    with processes() as here:
        figures = measure(options, here)
        if here.is_first:
            Path(options["result"]).write_text(json.dumps(figures))


def measure(options: dict[str, Any], here: Processes) -> dict[str, Any]:
    """Return the rate of all processes together, the time of a step, and its messages."""
    if here.device.type == "cpu":
        torch.set_num_threads(1)
    trainer = Trainer(
        Pretraining(_config(options, here.world_size)), here, wanted_kernels(options["kernels"])
    )
    steps = trainer.steps()
    for _ in range(WARMUP_STEPS):
        trainer.step(next(steps))
    trainer.settle()
    # All processes make as many steps: those of the pace of a first one.
    seconds, residues = _timed(trainer, steps, 1)
    (total,) = here.sum_on_host(seconds)
    num_steps = max(1, math.ceil(options["window"] * here.world_size / total))
    seconds, residues = _timed(trainer, steps, num_steps)
    messages = messages_of_step(trainer, steps)
    return {
        "gpus": here.world_size,
        "mode": options["mode"],
        "residues_per_second": residues / seconds,
        "step_seconds": seconds / num_steps,
        "steps": num_steps,
        "packs_per_process": options["packs_per_process"],
        "kernels": listed(trainer.kernels),
        "messages": messages,
    }


def _config(options: dict[str, Any], world_size: int) -> RunFile:
    mode = next(name for name in get_args(Mode) if name == options["mode"])
    tokens = options["tokens_per_pack"]
    return RunFile(
        name="benchmark",
        model=ModelConfig(init_from=options["model"], max_residues=MAX_RESIDUES),
        data=DataConfig(path=options["data"]),
        optim=OptimConfig(lr=LEARNING_RATE, warmup_steps=0),
        parallel=ParallelConfig(mode=mode),
        train=TrainConfig(
            tokens_per_pack=tokens,
            tokens_per_step=tokens * options["packs_per_process"] * world_size,
            precision="bf16" if torch.cuda.is_available() else "fp32",
        ),
    )


def _timed(trainer: Trainer, steps: Any, number: int) -> tuple[float, int]:
    """Return the seconds of some steps, from idle device to idle device, and their residues."""
    residues = 0
    synchronize(trainer.here.device)
    started = time.perf_counter()
    for _ in range(number):
        step = next(steps)
        trainer.step(step)
        residues += step.num_record_tokens
    trainer.settle()
    synchronize(trainer.here.device)
    return time.perf_counter() - started, residues


def messages_of_step(trainer: Trainer, steps: Any) -> dict[str, dict[str, int]]:
    """Return number and bytes of the messages of one step of this process, by collective."""
    step = next(steps)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        trainer.step(step)
        trainer.settle()
        synchronize(trainer.here.device)
    assert found.profiler is not None
    return counted(found.profiler.kineto_results.events())


def counted(events: Iterable[Event]) -> dict[str, dict[str, int]]:
    """Count messages by collective. Bytes are those of the tensors that a process passes to it."""
    messages: dict[str, dict[str, int]] = defaultdict(lambda: {"count": 0, "bytes": 0})
    for event in events:
        if not COLLECTIVE.match(event.name()):
            continue
        message = messages[event.name()]
        message["count"] += 1
        for shape, kind in zip(event.shapes(), event.dtypes(), strict=True):
            if kind in BYTES:
                message["bytes"] += math.prod(shape) * BYTES[kind]
            elif shape:
                raise ValueError(f"{event.name()}: no size is known for numbers of type {kind!r}")
    return dict(messages)


if __name__ == "__main__":
    main(sys.argv[1])
