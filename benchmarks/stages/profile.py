"""Stage 3: where the device's time goes, by kernel, while our trainer makes one-pack steps."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import synchronize
from benchmarks.figures import precision_of
from benchmarks.ours import model_of, run_config, steps_of, trainer_of
from workloads.esm2.config import TrainConfig
from workloads.esm2.loader import StepPacks
from workloads.esm2.trainer import Trainer

TOKENS_PER_PACK = {"8M": 65536, "150M": 32768, "650M": 16384}
NUM_KERNELS = 15
WARMUP_STEPS, PROFILED_STEPS = 5, 10
KINDS = (
    # The first that matches a kernel's name; the rest is pointwise, norms and reductions among it.
    ("attention", r"flash|fmha|attention|varlen"),
    ("copies", r"memcpy|memset|copy_|_to_copy"),
    ("optimizer", r"multi_tensor|adam|foreach"),
    ("products", r"gemm|nvjet|cutlass|cublas|xmma|triton_tem|triton_mm|aten::(add|b)?mm|linear|splitk"),
)


def cases(settings: Settings) -> list[Case]:
    sizes = TOKENS_PER_PACK if settings.as_on_gpu else {"8M": 2048}
    return [
        Case("profile", size, "ours", f"tokens_per_pack={tokens}", 60 if settings.as_on_gpu else 120)
        for size, tokens in sizes.items()
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Shares are of the time in which the device is busy, ``busy_share`` of the wall time."""
    tokens = 2048 if settings.rehearsal else int(case.values["tokens_per_pack"])
    precision = precision_of(settings.device)
    train = TrainConfig(tokens_per_pack=tokens, tokens_per_step=tokens, precision=precision)
    with TemporaryDirectory() as folder:
        config = run_config(model_of(case.size, settings, Path(folder)), settings.data, train)
        with trainer_of(config) as trainer, steps_of(trainer, 1) as steps:
            for _ in range(1 if settings.rehearsal else WARMUP_STEPS):
                trainer.step(next(steps))
            profiled = 1 if settings.rehearsal else PROFILED_STEPS
            kernels, wall = _kernels(trainer, [next(steps) for _ in range(profiled)])
            host, both = _micro_batch(trainer, next(steps))
    return {**summary(kernels, wall), "host_ms_per_micro_batch": host, "micro_batch_ms": both}


Kernel = tuple[str, float, float]
"""Name, start and end in microseconds."""


def _kernels(trainer: Trainer, steps: list[StepPacks]) -> tuple[list[Kernel], float]:
    """Return what ran on the device (on a CPU: the operators that call no others), and the wall time in us."""
    device = trainer.here.device
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    synchronize(device)
    with profile(activities=kinds) as found:
        started = time.perf_counter()
        for step in steps:
            trainer.step(step)
        synchronize(device)
        wall = (time.perf_counter() - started) * 1e6
    wanted = torch.autograd.DeviceType.CUDA if device.type == "cuda" else torch.autograd.DeviceType.CPU
    events = [
        event for event in found.events() or () if event.device_type == wanted and not event.cpu_children
    ]
    # Ranges that the profiler draws on the device for operators on the host are no kernels.
    return [
        (event.name, event.time_range.start, event.time_range.end)
        for event in events
        if not getattr(event, "is_user_annotation", False)
    ], wall


def summary(kernels: list[Kernel], wall: float) -> dict[str, Any]:
    """Return the table of a profile; kernels that overlap count once in ``busy_share``."""
    busy, reached = 0.0, 0.0
    by_name: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for name, start, end in sorted(kernels, key=lambda kernel: kernel[1]):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
        by_name[name] += end - start  # type: ignore[assignment]  # a Counter of floats
        calls[name] += 1
    total = sum(by_name.values()) or 1.0
    shares = dict.fromkeys([*(kind for kind, _ in KINDS), "pointwise"], 0.0)
    for name, spent in by_name.items():
        shares[kind_of(name)] += spent / total
    return {
        "busy_share": busy / wall,
        "shares": shares,
        "kernels": [
            {"name": name[:120], "kind": kind_of(name), "share": spent / total, "calls": calls[name]}
            for name, spent in by_name.most_common(NUM_KERNELS)
        ],
        "verdict": "measured",
    }


def kind_of(kernel: str) -> str:
    return next((kind for kind, pattern in KINDS if re.search(pattern, kernel, re.IGNORECASE)), "pointwise")


def _micro_batch(trainer: Trainer, step: StepPacks) -> tuple[float, float]:
    """Milliseconds of one forward and backward pass: until the host has launched it, and until it is done."""
    device, objective = trainer.here.device, trainer.objective
    synchronize(device)
    started = time.perf_counter()
    pack = objective.pack(step.packs[0], trainer.shape, device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=trainer.dtype == torch.bfloat16):
        loss = objective.loss_sum(trainer.model, pack)
    loss.backward()
    launched = time.perf_counter() - started
    synchronize(device)
    return launched * 1e3, (time.perf_counter() - started) * 1e3


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per size."""
    return [
        {
            "model": line["size"],
            "device busy": f"{line['figures']['busy_share']:.0%}",
            **{kind: f"{share:.0%}" for kind, share in line["figures"]["shares"].items()},
            "host ms per micro-batch": f"{line['figures']['host_ms_per_micro_batch']:.1f}",
            "of": f"{line['figures']['micro_batch_ms']:.1f}",
            "longest kernel": f"`{line['figures']['kernels'][0]['name'][:40]}`",
        }
        for line in lines
    ]
