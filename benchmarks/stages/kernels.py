"""Stage 6: each kernel of our own on and off, on top of those before it in the table of kernels.

Two trainers of one process, with and without a kernel, alternate in windows of as many steps on the same
packs. The gain of a kernel is the difference of their times per pack, by round. Then the next one is added.

A kernel stays if it reaches two thirds of its expected gain (``benchmarks/expected.py``) at one size, beyond
the spread of the rounds, and loses less than that spread at the other size.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import synchronize
from benchmarks.expected import EXPECTED
from benchmarks.figures import ceiling_of, extent
from benchmarks.ours import model_of, new_trainer, offered_kernels, run_config, steps_of
from seqlm.runs.run_file import RunFile
from seqlm.training.config import TrainConfig
from seqlm.training.kernels import KERNELS
from seqlm.training.processes import Processes, processes

TOKENS_PER_PACK = {"8M": 65536, "650M": 16384}
REHEARSED_TOKENS = 2048
PACKS_PER_STEP = 8
"""Packs of a step. Some kernels do work once per step, so steps of one pack would judge them wrongly."""
ROUNDS = 4
WARMUP_STEPS = 2
WINDOW_SHARE = 0.5
"""Length of a window in windows of the other stages, because there are many."""
GIGABYTES = {"8M": 10, "650M": 54}
"""Memory of two trainers, of which one works."""
SECONDS = {"8M": 80, "650M": 110}
"""Expected times: measured on an H200 at 8M, and estimated at 650M, from four kernels in four rounds of two
windows of 2 s, and five trainers."""
WARM_SECONDS = {"8M": 65, "650M": 80}
LEAST_SHARE = 2 / 3
"""Share of the expected gain that a kernel must reach."""


def cases(settings: Settings) -> list[Case]:
    if not settings.as_on_gpu:
        return []  # no kernel runs on a CPU
    return [
        Case(
            "kernels",
            size,
            "all",
            f"tokens_per_pack={tokens},packs_per_step={PACKS_PER_STEP},rounds={ROUNDS}",
            seconds=SECONDS[size],
            warm_seconds=WARM_SECONDS[size],
            gigabytes=GIGABYTES[size],
        )
        for size, tokens in TOKENS_PER_PACK.items()
    ]


class Arm:
    """Trainer with some kernels, and its position in the data.

    Args:
        config: configuration of the run.
        here: this process.
        kernels: kernels of our own.
    """

    def __init__(self, config: RunFile, here: Processes, kernels: frozenset[str]) -> None:
        self._trainer = new_trainer(config, here, kernels)
        self.offered = offered_kernels(self._trainer)
        self.kernels = self._trainer.kernels & self.offered
        """Kernels that the trainer uses, which may be fewer than those wanted."""
        self._stack = ExitStack()
        steps = steps_of(self._trainer, config.packs_per_step)
        self._steps = self._stack.enter_context(steps)

    def ms_per_pack(self, num_steps: int) -> float:
        """Return the mean time of a pack in some steps, after one that is not measured."""
        device = self._trainer.here.device
        self._trainer.step(next(self._steps))
        self._trainer.settle()
        synchronize(device)
        started = time.perf_counter()
        for _ in range(num_steps):
            self._trainer.step(next(self._steps))
        self._trainer.settle()
        synchronize(device)
        packs = num_steps * self._trainer.config.packs_per_step
        return (time.perf_counter() - started) * 1e3 / packs

    def close(self) -> None:
        """Free the memory of the trainer."""
        self._stack.close()
        self._trainer.release()


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Measure each kernel that the trainer offers, in the order of the table.

    Returns:
        Times per pack and gains as ``kernels``, by name, and the reason why others are missing as
        ``missing``. The verdict is ``failed`` if a kernel that is offered is not used.
    """
    tokens = REHEARSED_TOKENS if settings.rehearsal else int(case.values["tokens_per_pack"])
    train = TrainConfig(
        tokens_per_pack=tokens,
        tokens_per_step=tokens * PACKS_PER_STEP,
        precision=ceiling_of(settings.device).precision,
    )
    measured: dict[str, Any] = {}
    missing: dict[str, str] = {}
    with TemporaryDirectory() as folder, processes() as here:
        model = model_of(case.size, settings, Path(folder))
        config = run_config(model, settings.data, train)
        off = Arm(config, here, frozenset())
        for name in KERNELS:
            if name not in off.offered:
                missing[name] = "the trainer does not offer it"
                continue
            on = Arm(config, here, off.kernels | {name})
            if name not in on.kernels:
                missing[name] = "it is not used; see the warnings above"
                on.close()
                continue
            rounds = compared(off, on, settings)
            measured[name] = gain_of(name, case.size, *rounds)
            print(f"{name}: {measured[name]['gain_ms']['median']:.2f} ms per pack", flush=True)
            settings.record({"kernels": measured, "missing": missing})
            off.close()
            off = on
        off.close()
    figures = {"kernels": measured, "missing": missing}
    broken = [name for name, reason in missing.items() if "not used" in reason]
    if broken and settings.device.type == "cuda":
        return {**figures, "verdict": "failed", "error": f"not used: {', '.join(broken)}"}
    return {**figures, "verdict": "measured"}


def compared(off: Arm, on: Arm, settings: Settings) -> tuple[list[float], list[float]]:
    """Return the times per pack of both trainers by round. Every second round has the reverse order."""
    num_steps = 1
    first = {arm: arm.ms_per_pack(WARMUP_STEPS) for arm in (off, on)}
    if not settings.is_short:
        step_seconds = first[off] * PACKS_PER_STEP / 1e3
        num_steps = max(1, math.ceil(settings.window * WINDOW_SHARE / step_seconds))
    times: dict[Arm, list[float]] = {off: [], on: []}
    for number in range(1 if settings.is_warm_up else ROUNDS):
        order = (off, on) if number % 2 == 0 else (on, off)
        for arm in order:
            times[arm].append(arm.ms_per_pack(num_steps))
    return times[off], times[on]


def gain_of(name: str, size: str, off: Sequence[float], on: Sequence[float]) -> dict[str, Any]:
    """Return the gain of a kernel in ms per pack, by round, beside the expected one.

    Args:
        name: name of the kernel.
        size: size of the model.
        off: times per pack without the kernel, by round.
        on: times per pack with it.
    """
    gains = [before - after for before, after in zip(off, on, strict=True)]
    expected = EXPECTED.get((name, size))
    return {
        "off_ms": list(off),
        "on_ms": list(on),
        "gain_ms": extent(gains),
        "spread_ms": max(gains) - min(gains),
        # None: no gain is expected at this size.
        "expected_ms": None if expected is None else expected.ms_per_pack,
    }


def reaches_goal(gain: Mapping[str, Any]) -> bool:
    """Return whether a gain is two thirds of the expected one, and beyond the spread of the rounds."""
    if gain["expected_ms"] is None:
        return False
    median: float = gain["gain_ms"]["median"]
    return median >= LEAST_SHARE * gain["expected_ms"] and median > gain["spread_ms"]


def loses(gain: Mapping[str, Any]) -> bool:
    """Return whether a kernel loses as much as the spread of the rounds, or more."""
    lost: float = -gain["gain_ms"]["median"]
    return lost > 0 and lost >= gain["spread_ms"]


def decision(by_size: Mapping[str, Mapping[str, Any]]) -> str:
    """Return whether a kernel ``stays`` or is to be ``removed``; ``open`` until all sizes are measured.

    Args:
        by_size: gains of the kernel by size.
    """
    if by_size.keys() != TOKENS_PER_PACK.keys():
        return "open"
    for size, gain in by_size.items():
        others = [other for name, other in by_size.items() if name != size]
        if reaches_goal(gain) and not any(loses(other) for other in others):
            return "stays"
    return "removed"


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per kernel and size, with the decision of all sizes."""
    found: list[dict[str, str]] = []
    newest = {line["size"]: line["figures"]["kernels"] for line in lines}
    for name in KERNELS:
        by_size = {size: gains[name] for size, gains in newest.items() if name in gains}
        for size, gain in by_size.items():
            expected = gain["expected_ms"]
            found.append(
                {
                    "kernel": name,
                    "model": size,
                    "off, ms per pack": f"{sum(gain['off_ms']) / len(gain['off_ms']):.2f}",
                    "on, ms per pack": f"{sum(gain['on_ms']) / len(gain['on_ms']):.2f}",
                    "gain, ms": f"{gain['gain_ms']['median']:.2f}",
                    "spread, ms": f"{gain['spread_ms']:.2f}",
                    "expected, ms": "-" if expected is None else f"{expected:.2f}",
                    "decision": decision(by_size),
                }
            )
    return found
