"""Stage 3: time of the device by kernel in one-pack steps of our trainer."""

import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import synchronize
from benchmarks.figures import ceiling_of
from benchmarks.ours import model_of, run_config, steps_of, trainer_of
from seqlm.training.config import TrainConfig
from seqlm.training.step.loader import StepPacks
from seqlm.training.trainer import Trainer

TOKENS_PER_PACK = {"8M": 65536, "150M": 32768, "650M": 16384}
NUM_KERNELS = 15
WARMUP_STEPS = 5
PROFILED_STEPS = 10
KINDS = {
    # The first pattern that matches a kernel's name counts. Names of compiled kernels contain all their fused
    # operators. Other kernels count as pointwise, including norms and reductions.
    "pointwise": r"^triton_(poi|red|per)_",
    "attention": r"flash|fmha|attention|varlen",
    "copies": r"memcpy|memset|copy_",
    "optimizer": r"multi_tensor|adam|foreach",
    "products": r"gemm|nvjet|cutlass|cublas|xmma|triton_tem|triton_mm|aten::(add|b)?mm|splitk",
}


class Kernel(NamedTuple):
    """Run of a kernel, with times in microseconds."""

    name: str
    start: float
    end: float


def cases(settings: Settings) -> list[Case]:
    sizes = TOKENS_PER_PACK if settings.as_on_gpu else {"8M": 2048}
    seconds = 60 if settings.as_on_gpu else 120
    return [
        Case("profile", size, "ours", f"tokens_per_pack={sizes[size]}", seconds) for size in sizes
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Profile steps, and measure the time of a micro-batch until it is launched, and until it is done."""
    tokens = 2048 if settings.rehearsal else int(case.values["tokens_per_pack"])
    precision = ceiling_of(settings.device).precision
    train = TrainConfig(tokens_per_pack=tokens, tokens_per_step=tokens, precision=precision)
    num_warmup = 1 if settings.rehearsal else WARMUP_STEPS
    num_profiled = 1 if settings.rehearsal else PROFILED_STEPS
    with TemporaryDirectory() as folder:
        config = run_config(model_of(case.size, settings, Path(folder)), settings.data, train)
        with trainer_of(config) as trainer, steps_of(trainer, 1) as steps:
            for _ in range(num_warmup):
                trainer.step(next(steps))
            trainer.settle()
            profiled = _profiled(trainer, [next(steps) for _ in range(num_profiled)])
            micro_batch = _micro_batch(trainer, next(steps))
    return {
        **summary(profiled.kernels, profiled.wall),
        "host_ms_per_micro_batch": micro_batch.launched_ms,
        "micro_batch_ms": micro_batch.done_ms,
    }


class Profiled(NamedTuple):
    kernels: list[Kernel]
    """Kernels on the device; on a CPU, operators without those that they call."""
    wall: float
    """Wall time in microseconds."""


def _profiled(trainer: Trainer, steps: list[StepPacks]) -> Profiled:
    device = trainer.here.device
    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU]
    if is_cuda:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, acc_events=True) as found:
        started = time.perf_counter()
        for step in steps:
            trainer.step(step)
        trainer.settle()
        synchronize(device)
        wall = (time.perf_counter() - started) * 1e6
    kernels: list[Kernel] = []
    for event in found.events() or ():
        # Annotations on the device mark operators of the host, and are not kernels.
        if event.device_type.name != device.type.upper() or event.is_user_annotation:
            continue
        start = event.time_range.start
        end = event.time_range.end if is_cuda else start + event.self_cpu_time_total
        kernels.append(Kernel(event.name, start, end))
    return Profiled(kernels, wall)


def summary(kernels: list[Kernel], wall: float) -> dict[str, Any]:
    """Return shares of the kernels' time, and of the wall time in which any of them ran."""
    busy = 0.0
    busy_until = 0.0
    spent: dict[str, float] = defaultdict(float)
    calls = Counter(kernel.name for kernel in kernels)
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        # Kernels overlap. Only the time after the end of the earlier ones is added.
        busy += max(0.0, kernel.end - max(kernel.start, busy_until))
        busy_until = max(busy_until, kernel.end)
        spent[kernel.name] += kernel.end - kernel.start
    total = sum(spent.values())
    shares = dict.fromkeys(KINDS, 0.0)
    for name, time_spent in spent.items():
        shares[kind_of(name)] += time_spent / total
    longest = sorted(spent, key=lambda name: -spent[name])[:NUM_KERNELS]
    return {
        "busy_share": busy / wall,
        "shares": shares,
        "kernels": [
            {
                "name": name[:120],
                "kind": kind_of(name),
                "share": spent[name] / total,
                "calls": calls[name],
            }
            for name in longest
        ],
        "verdict": "measured",
    }


def kind_of(kernel: str) -> str:
    for kind, pattern in KINDS.items():
        if re.search(pattern, kernel, re.IGNORECASE):
            return kind
    return "pointwise"


class MicroBatch(NamedTuple):
    """Times of a forward and backward pass."""

    launched_ms: float
    """Time until the host has launched it."""
    done_ms: float


def _micro_batch(trainer: Trainer, step: StepPacks) -> MicroBatch:
    device = trainer.here.device
    objective = trainer.objective
    synchronize(device)
    started = time.perf_counter()
    pack = objective.pack(step.packs[0], trainer.shape, device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=trainer.dtype == torch.bfloat16):
        loss = objective.loss_sum(trainer.model, pack)
    loss.backward()
    launched = time.perf_counter()
    synchronize(device)
    done = time.perf_counter()
    return MicroBatch(launched_ms=(launched - started) * 1e3, done_ms=(done - started) * 1e3)


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per size."""
    return [
        {
            "model": line["size"],
            "device busy": f"{line['figures']['busy_share']:.0%}",
            **{kind: f"{share:.0%}" for kind, share in line["figures"]["shares"].items()},
            "ms per micro-batch": f"{line['figures']['micro_batch_ms']:.1f}",
            "of the host": f"{line['figures']['host_ms_per_micro_batch']:.1f}",
            "longest kernel": f"`{line['figures']['kernels'][0]['name'][:40]}`",
        }
        for line in lines
    ]
