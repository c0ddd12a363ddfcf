"""Stage 3: time of the device by kernel in one-pack steps of our trainer.

The host's time is measured before the profiler runs, because CUPTI stays attached to the process and slows
every launch.
"""

import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import synchronize
from benchmarks.figures import ceiling_of
from benchmarks.ours import model_of, run_config, steps_of, trainer_of, wanted_kernels
from seqlm.training.config import TrainConfig
from seqlm.training.kernels import listed
from seqlm.training.step.loader import StepPacks
from seqlm.training.trainer import Trainer

TOKENS_PER_PACK = {"8M": 65536, "150M": 32768, "650M": 16384}
GIGABYTES = {"8M": 6, "150M": 29, "650M": 39}
NUM_KERNELS = 15
WARMUP_STEPS = 5
PROFILED_STEPS = 10
TIMED_STEPS = 5
KINDS = {
    # The first pattern that matches a kernel's name counts. Names of compiled kernels contain all their fused
    # operators. Other kernels of Triton count as pointwise, including norms and reductions.
    "pointwise": r"^triton_(poi|red|per)_",
    "attention": r"flash|fmha|attention|varlen",
    "copies": r"memcpy|memset|copy_",
    "optimizer": r"multi_tensor|adam|foreach",
    "products": r"gemm|nvjet|cutlass|cublas|xmma|triton_tem|triton_mm|aten::(add|b)?mm|splitk",
}
OTHER = "pointwise"
"""Kind of kernels that no pattern matches."""
MASKING = "masking"
"""Kind of all kernels that are launched while a pack is masked."""


class Kernel(NamedTuple):
    """Run of a kernel, with times in microseconds."""

    name: str
    start: float
    end: float
    is_masking: bool = False


def cases(settings: Settings) -> list[Case]:
    sizes = TOKENS_PER_PACK if settings.as_on_gpu else {"8M": 2048}
    if not settings.as_on_gpu:
        return [
            Case("profile", size, "ours", f"tokens_per_pack={sizes[size]}", 120) for size in sizes
        ]
    # Whole cases took 29.3 s (8M) and 36.8 s (650M) on an H200. The parts are estimated.
    return [
        Case(
            "profile",
            size,
            "ours",
            f"tokens_per_pack={tokens}",
            seconds=12,
            warm_seconds=24,
            gigabytes=GIGABYTES[size],
            process=f"ours {size}",
            slows_process=True,
        )
        for size, tokens in sizes.items()
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Profile steps, and measure the time of a micro-batch until it is launched, and until it is done."""
    tokens = 2048 if settings.rehearsal else int(case.values["tokens_per_pack"])
    precision = ceiling_of(settings.device).precision
    train = TrainConfig(tokens_per_pack=tokens, tokens_per_step=tokens, precision=precision)
    num_warmup = 1 if settings.is_short else WARMUP_STEPS
    num_timed = 1 if settings.is_short else TIMED_STEPS
    num_profiled = 1 if settings.is_short else PROFILED_STEPS
    with TemporaryDirectory() as folder:
        config = run_config(model_of(case.size, settings, Path(folder)), settings.data, train)
        with (
            trainer_of(config, wanted_kernels(settings.kernels)) as trainer,
            steps_of(trainer, 1) as steps,
        ):
            for _ in range(num_warmup):
                trainer.step(next(steps))
            trainer.settle()
            timed = [_host_time(trainer, next(steps)) for _ in range(num_timed)]
            host = {
                "host_ms_masking": statistics.median(one.masking_ms for one in timed),
                "host_ms_per_step": statistics.median(one.launched_ms for one in timed),
                "step_ms": statistics.median(one.done_ms for one in timed),
                "kernels_of_our_own": listed(trainer.kernels),
            }
            settings.record(host)
            if settings.is_warm_up:
                return host  # a profiler would slow the cases that follow
            profiled = _profiled(trainer, [next(steps) for _ in range(num_profiled)])
    return {**summary(profiled.kernels, profiled.wall, num_profiled), **host}


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
    with masking_watched(trainer), profile(activities=activities, acc_events=True) as found:
        started = time.perf_counter()
        for step in steps:
            trainer.step(step)
        trainer.settle()
        synchronize(device)
        wall = (time.perf_counter() - started) * 1e6
    events = [
        event for event in found.events() or () if event.device_type.name == device.type.upper()
    ]
    masking = [event.time_range for event in events if event.name == MASKING]
    kernels: list[Kernel] = []
    for event in events:
        # Annotations on the device mark operators of the host, and are not kernels.
        if event.is_user_annotation or event.name == MASKING:
            continue
        start = event.time_range.start
        end = event.time_range.end if is_cuda else start + event.self_cpu_time_total
        is_masking = any(marked.start <= start < marked.end for marked in masking)
        kernels.append(Kernel(event.name, start, end, is_masking))
    return Profiled(kernels, wall)


@contextmanager
def masking_watched(trainer: Trainer, seconds: list[float] | None = None) -> Iterator[None]:
    """Mark the masking of packs in profiles, whose kernels else look like those of the model.

    Args:
        trainer: trainer that masks packs while the context lasts.
        seconds: list that gets the host's time for each pack.
    """
    objective = trainer.objective
    mask = objective.pack

    def watched(*arguments: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        with record_function(MASKING):
            pack = mask(*arguments, **keywords)
        if seconds is not None:
            seconds.append(time.perf_counter() - started)
        return pack

    objective.pack = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        objective.pack = mask  # type: ignore[method-assign]


def summary(kernels: Sequence[Kernel], wall: float, num_steps: int) -> dict[str, Any]:
    """Return times of the kernels by kind, and the share of the wall time in which any of them ran.

    Args:
        kernels: kernels of all steps.
        wall: wall time of all steps in microseconds.
        num_steps: number of steps.
    """
    busy = 0.0
    busy_until = 0.0
    spent: dict[tuple[str, str], float] = defaultdict(float)
    calls = Counter((kernel.name, kind_of(kernel)) for kernel in kernels)
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        # Kernels overlap. Only the time after the end of the earlier ones is added.
        busy += max(0.0, kernel.end - max(kernel.start, busy_until))
        busy_until = max(busy_until, kernel.end)
        spent[kernel.name, kind_of(kernel)] += kernel.end - kernel.start
    total = sum(spent.values())
    by_kind = dict.fromkeys((*KINDS, MASKING), 0.0)
    for (_, kind), microseconds in spent.items():
        by_kind[kind] += microseconds
    longest = sorted(spent, key=lambda key: -spent[key])[:NUM_KERNELS]
    return {
        "busy_share": busy / wall,
        "wall_ms_per_step": wall / 1e3 / num_steps,
        "kernel_ms_per_step": total / 1e3 / num_steps,
        "launches_per_step": len(kernels) / num_steps,
        "shares": {kind: microseconds / total for kind, microseconds in by_kind.items()},
        "ms_per_step": {
            kind: microseconds / 1e3 / num_steps for kind, microseconds in by_kind.items()
        },
        "kernels": [
            {
                "name": name[:120],
                "kind": kind,
                "share": spent[name, kind] / total,
                "ms_per_step": spent[name, kind] / 1e3 / num_steps,
                "calls": calls[name, kind],
            }
            for name, kind in longest
        ],
        "verdict": "measured",
    }


def kind_of(kernel: Kernel) -> str:
    """Return the kind of a kernel."""
    if kernel.is_masking:
        return MASKING
    for kind, pattern in KINDS.items():
        if re.search(pattern, kernel.name, re.IGNORECASE):
            return kind
    return OTHER


class HostTime(NamedTuple):
    """Times of a one-pack step, from an idle device on."""

    masking_ms: float
    """Part of the host's time in which it launches the masking of packs."""
    launched_ms: float
    """Time until the host has launched everything."""
    done_ms: float
    """Time until the device has computed it."""


def _host_time(trainer: Trainer, step: StepPacks) -> HostTime:
    trainer.settle()
    synchronize(trainer.here.device)
    masking: list[float] = []
    with masking_watched(trainer, masking):
        started = time.perf_counter()
        trainer.step(step)
        launched = time.perf_counter()
    synchronize(trainer.here.device)
    done = time.perf_counter()
    return HostTime(
        masking_ms=sum(masking) * 1e3,
        launched_ms=(launched - started) * 1e3,
        done_ms=(done - started) * 1e3,
    )


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per size."""
    found: list[dict[str, str]] = []
    for line in lines:
        figures = line["figures"]
        row = {
            "model": line["size"],
            "device busy": f"{figures['busy_share']:.0%}",
            **{kind: f"{share:.0%}" for kind, share in figures["shares"].items()},
        }
        # Lines of earlier versions have times of a micro-batch, without the optimizer.
        if "step_ms" in figures:
            row["ms per step"] = f"{figures['step_ms']:.1f}"
            row["launched in"] = f"{figures['host_ms_per_step']:.1f}"
        else:
            row["ms per micro-batch"] = f"{figures['micro_batch_ms']:.1f}"
            row["of the host"] = f"{figures['host_ms_per_micro_batch']:.1f}"
        found.append({**row, "longest kernel": f"`{figures['kernels'][0]['name'][:40]}`"})
    return found
