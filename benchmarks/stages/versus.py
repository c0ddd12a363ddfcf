"""Stage 5: our trainer beside transformers' Trainer, on the same proteins from the same weights, in turns.

The contestants are the guidance's set-up, the tuned one (``benchmarks/trainers.py`` describes both, compiled) and
ours. Each is a process that works only in its turn, A B C C B A and so on, so that a machine that is slower for a
while is slower for all; ratios are taken within a round. On a CPU each has one thread, a second is one of its
process's CPU time, and each computes in the type that was faster for it in a short trial.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import (
    REHEARSED,
    STEADY,
    Contestant,
    ContestantFailedError,
    ContestantProcess,
    Grant,
    Window,
    windows_of,
)
from benchmarks.figures import Arithmetic, Precision, ceiling_of, figures_of, precisions_of
from benchmarks.ours import ENDLESS, Ours, model_of, run_config
from benchmarks.trainers import GUIDANCE_BATCH_SIZE, Trainers
from workloads.esm2.config import ModelConfig, TrainConfig

SHAPES = (("8M", 256, 65536, 230), ("650M", 32, 16384, 290), ("8M", 64, 65536, 230))
"""Size, batch size of ``tuned``, tokens per pack of ours, expected seconds."""
CPU_SHAPES = (("8M", 8, 4096, 1500),)
"""For ``tuned`` batches of 4, 8 and 16 in turns on a Zen 4 core made 1.30, 1.33 and 1.32 k residues/s."""
GOALS = {
    ("cuda", "8M"): {"guidance": 4.0, "tuned": 2.0},
    ("cuda", "650M"): {"guidance": 3.0, "tuned": 1.3},
    ("cpu", "8M"): {"guidance": 2.5, "tuned": 1.7},
}
"""Least ratios of our residues/s to theirs."""
OURS = "ours"
ROUNDS = {"cuda": 2, "cpu": 3}
WARMUP = Grant(steps=6)
"""Compilation, kernels made at the first sight of a shape, allocator."""
TRIAL = Grant(seconds=5, steps=2)
LEAST_TOKENS = 2048


def cases(settings: Settings) -> list[Case]:
    shapes = SHAPES if settings.as_on_gpu else CPU_SHAPES
    return [
        Case("versus", size, "all", f"tuned_batch={batch},tokens_per_pack={tokens}", seconds)
        for size, batch, tokens, seconds in shapes
    ]


@dataclass(frozen=True)
class Entrant:
    """A contestant before its batch size and arithmetic type are settled."""

    build: Callable[[int, Precision, bool], Contestant]
    """From batch size (of ours: tokens per pack), type, and whether layers are compiled."""
    size: int
    least: int
    """Smallest size that may be tried when memory runs out."""


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Run the rounds. Batches that do not fit are halved; a contestant that fails leaves the others to go on."""
    values, device, rehearsal = case.values, settings.device, settings.rehearsal
    with TemporaryDirectory(prefix="bench-versus-") as name, ExitStack() as stack:
        folder = Path(name)
        model = model_of(case.size, settings, folder)
        tokens = LEAST_TOKENS if rehearsal else int(values["tokens_per_pack"])
        batch = 4 if rehearsal else int(values["tuned_batch"])
        entrants = entrants_of(model, settings.data, folder, batch, tokens)
        running: dict[str, ContestantProcess] = {}
        chosen: dict[str, dict[str, Any]] = {}
        errors: dict[str, str] = {}
        for key, entrant in entrants.items():
            precision = _fastest(entrant, precisions_of(device), REHEARSED if rehearsal else TRIAL)
            warmup = REHEARSED if rehearsal else WARMUP
            try:
                running[key], size = _started(key, entrant, precision, not rehearsal, warmup)
            except ContestantFailedError as error:
                errors[key] = _message(error)
                continue
            stack.callback(running[key].close)
            chosen[key] = {"precision": precision, "batch": size}
        windows: dict[str, list[Window]] = {key: [] for key in running}
        ceilings = []
        grant = REHEARSED if rehearsal else STEADY
        for number in range(ROUNDS[device.type]):
            ceilings.append(ceiling_of(device, seconds=grant.seconds / 10))
            for key in list(running) if number % 2 == 0 else list(reversed(running)):
                try:
                    windows[key].append(running[key].window(grant))
                except ContestantFailedError as error:
                    errors[key] = _message(error)
                    del running[key], windows[key]
            rates = ", ".join(f"{key} {found[-1].residues_per_second:,.0f}" for key, found in windows.items())
            print(f"round {number + 1}: {rates}", flush=True)
        goals = GOALS.get((device.type, case.size), {})
        return {**summary(windows, chosen, model, settings, ceilings, goals, errors)}


def entrants_of(model: ModelConfig, data: Path, folder: Path, batch: int, tokens: int) -> dict[str, Entrant]:
    def trainers(name: str) -> Callable[[int, Precision, bool], Contestant]:
        def build(size: int, precision: Precision, compiled: bool) -> Contestant:
            made = Trainers(name, model, folder / name, data, size, precision, compiled)
            made.store()
            return made

        return build

    def ours(size: int, precision: Precision, compiled: bool) -> Contestant:
        train = TrainConfig(
            max_steps=ENDLESS, tokens_per_pack=size, tokens_per_step=size, precision=precision
        )
        return Ours(run_config(model, data, train))

    return {
        "guidance": Entrant(trainers("guidance"), GUIDANCE_BATCH_SIZE, GUIDANCE_BATCH_SIZE),
        "tuned": Entrant(trainers("tuned"), batch, 1),
        OURS: Entrant(ours, tokens, LEAST_TOKENS),
    }


def _fastest(entrant: Entrant, precisions: Sequence[Precision], grant: Grant) -> Precision:
    """Return the type in which a contestant makes most residues per second, without compilation."""
    if len(precisions) == 1:
        return precisions[0]
    rates: dict[Precision, float] = {}
    for precision in precisions:
        _, window = windows_of(entrant.build(entrant.size, precision, False), (REHEARSED, grant))
        rates[precision] = window.residues_per_second
    return max(rates, key=lambda precision: rates[precision])


def _started(
    name: str, entrant: Entrant, precision: Precision, compiled: bool, warmup: Grant
) -> tuple[ContestantProcess, int]:
    """Return a contestant after its first window, and the batch size with which it fits into memory."""
    size = entrant.size
    while True:
        process = ContestantProcess(name, entrant.build(size, precision, compiled))
        try:
            process.await_ready()
            process.window(warmup)
        except ContestantFailedError as error:
            process.close()
            if not error.out_of_memory or size // 2 < entrant.least:
                raise
            print(f"{name}: {size} does not fit", flush=True)
            size //= 2
        else:
            print(f"{name} is warm", flush=True)
            return process, size


def _message(error: ContestantFailedError) -> str:
    return f"out of memory: {error}" if error.out_of_memory else str(error)


def summary(
    windows: dict[str, list[Window]],
    chosen: dict[str, dict[str, Any]],
    model: ModelConfig,
    settings: Settings,
    ceilings: list[float],
    goals: dict[str, float],
    errors: dict[str, str],
) -> dict[str, Any]:
    """Return the figures of every contestant, our ratios to the others by round, and the verdict."""
    contestants = {}
    for key, found in windows.items():
        arithmetic = Arithmetic(model, chosen[key]["batch"] if key == OURS else None)
        contestants[key] = {**figures_of(found, arithmetic, settings.device, ceilings), **chosen[key]}
    ratios = {}
    for key, found in windows.items():
        if key != OURS and OURS in windows:
            pairs = zip(windows[OURS], found, strict=True)
            by_round = [ours.residues_per_second / theirs.residues_per_second for ours, theirs in pairs]
            ratios[key] = {"median": statistics.median(by_round), "min": min(by_round), "max": max(by_round)}
    met = [ratios[key]["median"] >= goal for key, goal in goals.items() if key in ratios]
    verdict = "measured" if settings.rehearsal or not met else "passed" if all(met) else "missed"
    failed = {key: error for key, error in errors.items() if not error.startswith("out of memory")}
    result: dict[str, Any] = {"contestants": contestants, "ratios": ratios, "goals": goals, "errors": errors}
    if failed:
        return {**result, "verdict": "failed", "error": "; ".join(failed.values())}
    return {**result, "verdict": "out of memory" if OURS in errors else verdict}


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per contestant."""
    found = []
    for line in lines:
        figures = line["figures"]
        for key, one in figures["contestants"].items():
            ratio = figures["ratios"].get(key)
            unit = "rows" if key != OURS else "tokens"
            found.append(
                {
                    "model": line["size"],
                    "contestant": key,
                    "batch": f"{one['batch']:,} {unit}, {one['precision']}",
                    "residues/s": f"{one['residues_per_second']:,.0f}",
                    "slowest - fastest": f"{one['slowest']:,.0f} - {one['fastest']:,.0f}",
                    "fill": f"{one['fill']:.2f}",
                    "MFU, model": f"{one['model_mfu']:.1%}",
                    "MFU, executed": f"{one['executed_mfu']:.1%}",
                    "of the measured ceiling": f"{one['share_of_ceiling']:.0%}",
                    "mean length": f"{one['mean_length']:.0f}",
                    "peak GB": f"{one['peak_gb']:.1f}",
                    "ours over it": f"{ratio['median']:.2f}x" if ratio else "",
                }
            )
        found += [
            {"model": line["size"], "contestant": key, "residues/s": "out of memory"}
            for key, error in figures["errors"].items()
            if error.startswith("out of memory")
        ]
    return found
