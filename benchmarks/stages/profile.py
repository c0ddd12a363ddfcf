"""Stage 3: where the device's time goes, by kernel, while our trainer makes one-pack steps."""

import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import synchronize
from benchmarks.figures import ceiling_of
from benchmarks.ours import model_of, run_config, steps_of, trainer_of
from seqlm.training.config import TrainConfig
from seqlm.training.loader import StepPacks
from seqlm.training.trainer import Trainer

TOKENS_PER_PACK = {"8M": 65536, "150M": 32768, "650M": 16384}
NUM_KERNELS = 15
WARMUP_STEPS, PROFILED_STEPS = 5, 10
KINDS = {
    # The first that matches a kernel's name. Compiled kernels are named after all operators fused in them.
    # What matches nothing is pointwise, too, norms and reductions included.
    "pointwise": r"^triton_(poi|red|per)_",
    "attention": r"flash|fmha|attention|varlen",
    "copies": r"memcpy|memset|copy_",
    "optimizer": r"multi_tensor|adam|foreach",
    "products": r"gemm|nvjet|cutlass|cublas|xmma|triton_tem|triton_mm|aten::(add|b)?mm|splitk",
}
Kernel = tuple[str, float, float]
"""Name, start and end in microseconds."""


def cases(settings: Settings) -> list[Case]:
    sizes = TOKENS_PER_PACK if settings.as_on_gpu else {"8M": 2048}
    seconds = 60 if settings.as_on_gpu else 120
    return [Case("profile", size, "ours", f"tokens_per_pack={sizes[size]}", seconds) for size in sizes]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Profile steps, and time a micro-batch: until the host has launched it, and until it is done."""
    tokens = 2048 if settings.rehearsal else int(case.values["tokens_per_pack"])
    precision = ceiling_of(settings.device)[1]
    train = TrainConfig(tokens_per_pack=tokens, tokens_per_step=tokens, precision=precision)
    warmup, profiled = (1, 1) if settings.rehearsal else (WARMUP_STEPS, PROFILED_STEPS)
    with TemporaryDirectory() as folder:
        config = run_config(model_of(case.size, settings, Path(folder)), settings.data, train)
        with trainer_of(config) as trainer, steps_of(trainer, 1) as steps:
            for _ in range(warmup):
                trainer.step(next(steps))
            trainer.settle()
            kernels, wall = _kernels(trainer, [next(steps) for _ in range(profiled)])
            launched, done = _micro_batch(trainer, next(steps))
    return {**summary(kernels, wall), "host_ms_per_micro_batch": launched, "micro_batch_ms": done}


def _kernels(trainer: Trainer, steps: list[StepPacks]) -> tuple[list[Kernel], float]:
    """Return what ran on the device (on a CPU: operators, each by itself), and the wall time in us."""
    device = trainer.here.device
    is_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * is_cuda]
    with profile(activities=activities, acc_events=True) as found:
        started = time.perf_counter()
        for step in steps:
            trainer.step(step)
        trainer.settle()
        synchronize(device)
        wall = (time.perf_counter() - started) * 1e6
    return [
        (event.name, start, event.time_range.end if is_cuda else start + event.self_cpu_time_total)
        for event in found.events() or ()
        # Ranges drawn on the device for operators of the host are no kernels.
        if event.device_type.name == device.type.upper() and not event.is_user_annotation
        for start in [event.time_range.start]
    ], wall


def summary(kernels: list[Kernel], wall: float) -> dict[str, Any]:
    """Return shares of the kernels' time, and of the wall time in which any of them ran."""
    busy = reached = 0.0
    spent: dict[str, float] = defaultdict(float)
    calls = Counter(name for name, _, _ in kernels)
    for name, start, end in sorted(kernels, key=lambda kernel: kernel[1]):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
        spent[name] += end - start
    total = sum(spent.values())
    shares = dict.fromkeys(KINDS, 0.0)
    for name, time_spent in spent.items():
        shares[kind_of(name)] += time_spent / total
    longest = sorted(spent, key=lambda name: -spent[name])[:NUM_KERNELS]
    return {
        "busy_share": busy / wall,
        "shares": shares,
        "kernels": [
            {"name": name[:120], "kind": kind_of(name), "share": spent[name] / total, "calls": calls[name]}
            for name in longest
        ],
        "verdict": "measured",
    }


def kind_of(kernel: str) -> str:
    found = (kind for kind, pattern in KINDS.items() if re.search(pattern, kernel, re.IGNORECASE))
    return next(found, "pointwise")


def _micro_batch(trainer: Trainer, step: StepPacks) -> tuple[float, float]:
    """Milliseconds of a forward and backward pass: until the host has launched it, and until it is done."""
    device, objective = trainer.here.device, trainer.objective
    synchronize(device)
    started = time.perf_counter()
    pack = objective.pack(step.packs[0], trainer.shape, device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=trainer.dtype == torch.bfloat16):
        loss = objective.loss_sum(trainer.model, pack)
    loss.backward()
    launched = time.perf_counter()
    synchronize(device)
    return (launched - started) * 1e3, (time.perf_counter() - started) * 1e3


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per size."""
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
