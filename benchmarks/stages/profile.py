"""Kernels in which the device's time goes while our trainer makes one-pack steps, by torch.profiler."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import synchronize
from benchmarks.figures import ceiling_of
from benchmarks.ours import model_of, run_config, steps_of, trainer_of
from workloads.training.config import TrainConfig

TOKENS_PER_PACK = {"8M": 65536, "150M": 32768, "650M": 16384}
NUM_KERNELS, NUM_ROWS = 15, 5
WARMUP_STEPS, PROFILED_STEPS = 5, 10


def cases(settings: Settings) -> list[Case]:
    sizes = TOKENS_PER_PACK if settings.as_on_gpu else {"8M": 2048}
    seconds = 60 if settings.as_on_gpu else 120
    return [Case("profile", size, "ours", f"tokens_per_pack={sizes[size]}", seconds) for size in sizes]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Return shares of the wall time of steps, by kernel; on a CPU by operator, each by itself."""
    device, is_cuda = settings.device, settings.device.type == "cuda"
    tokens = 2048 if settings.rehearsal else int(case.values["tokens_per_pack"])
    train = TrainConfig(tokens_per_pack=tokens, tokens_per_step=tokens, precision=ceiling_of(device)[1])
    warmup, profiled = (1, 1) if settings.rehearsal else (WARMUP_STEPS, PROFILED_STEPS)
    with TemporaryDirectory() as folder:
        config = run_config(model_of(case.size, settings, Path(folder)), settings.data, train)
        with trainer_of(config) as trainer, steps_of(trainer, 1) as steps:
            for _ in range(warmup):
                trainer.step(next(steps))
            trainer.settle()
            packs = [next(steps) for _ in range(profiled)]
            with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * is_cuda]) as found:
                started = time.perf_counter()
                for step in packs:
                    trainer.step(step)
                trainer.settle()
                synchronize(device)
                wall = time.perf_counter() - started
    shares = {
        event.key: (event.self_device_time_total if is_cuda else event.self_cpu_time_total) / wall / 1e6
        for event in found.key_averages()
        # Ranges drawn on the device for operators of the host are no kernels.
        if event.device_type.name == device.type.upper() and not event.is_user_annotation
    }
    longest = sorted(shares, key=lambda name: -shares[name])[:NUM_KERNELS]
    return {
        "busy_share": sum(shares.values()),
        "ms_per_step": wall / profiled * 1e3,
        "kernels": [{"name": name[:120], "share": shares[name]} for name in longest],
        "verdict": "measured",
    }


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per size and kernel, for the longest."""
    return [
        {
            "model": line["size"],
            "device busy": f"{line['figures']['busy_share']:.0%}",
            "kernel": f"`{kernel['name'][:60]}`",
            "share of the time": f"{kernel['share']:.1%}",
        }
        for line in lines
        for kernel in line["figures"]["kernels"][:NUM_ROWS]
    ]
