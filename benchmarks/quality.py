"""Held-out loss of the training benchmark's arms at equal numbers of real residues.

Each arm trains at several learning rates and is judged by its best. All are scored in the same way, on the
validation split under fixed masks; scoring is not part of their time, nor is compiling: the first steps
count at the pace of the later ones.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.arm_process import ArmProcess, Grant, Window
from benchmarks.arm_setup import MAX_RESIDUES, NAMES, SEED, Setup
from benchmarks.trainer_arms import GUIDANCE_BATCH_SIZE, GUIDANCE_TOKENS, SPECIAL_TOKENS
from workloads.esm2.config import ModelConfig
from workloads.esm2.evaluation import score, unigram_perplexity
from workloads.esm2.packing import PackShape, PackStream
from workloads.esm2.pretrained import starting_config, with_weights
from workloads.esm2.processes import Processes, processes
from workloads.esm2.proteins import ProteinSplit

# A compiled is A, only faster: its time is what B's is compared with.
ARMS = ("a-compiled", "a-prime", "b")
LEARNING_RATES = {
    "a": (5e-5, 1e-4, 4e-4),  # the guidance's own first
    "a-compiled": (5e-5, 1e-4, 4e-4),
    "a-prime": (1e-4, 4e-4, 1e-3),
    "b": (1e-4, 4e-4, 1e-3),
}
CPU_RESIDUES, CUDA_RESIDUES = 600_000, 20_000_000
TOKENS_PER_PACK = {"cpu": 1280, "cuda": 8192}
BATCH_SIZE = {"cpu": 4, "cuda": 32}
"""Of B and A': about equally many residues in a step. On a CPU also about as many as in A's: in a run this
short the number of steps decides, and B and A' would lose to A by that alone."""
WARMUP_SHARE = 0.05
"""Of the steps of A' and B; A has no warm-up."""
COMPILING_STEPS = 3
NUM_POINTS = 5
SCORING_TOKENS_PER_PACK = 4096
NUM_SCORING_PACKS = {"cpu": 8, "cuda": 0}
"""Of the validation split, 0 for all: a CPU would take longer to score all of it than to train. The proteins
and masks are the same for every arm."""
MAX_LOSS_RATIO = 1.005
"""B's loss over that of A' that is accepted."""


@dataclass(frozen=True)
class Point:
    residues: int
    seconds: float
    steps: int
    loss: float
    """On the validation split."""


def compare(
    setup: Setup, residues: int | None, is_quick: bool, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Train and score every arm at every learning rate; returns figures for the table and the JSON."""
    is_cuda = setup.device.type == "cuda"
    budget = residues or (CUDA_RESIDUES if is_cuda else CPU_RESIDUES)
    runs: list[tuple[str, float]] = [
        (key, rate)
        # Without compilation, which takes longer than all the rest of a quick run.
        for key in (("a", "a-prime", "b") if is_quick else ARMS)
        for rate in LEARNING_RATES[key][: 1 if is_quick else None]
    ]
    per_step = residues_per_step(setup)
    jobs = 1 if is_cuda else min(2, len(os.sched_getaffinity(0)))
    with processes() as here, TemporaryDirectory(prefix="bench-quality-") as folder:
        scorer = _Scorer(setup, here)

        def curve(numbered: tuple[int, tuple[str, float]]) -> list[Point]:
            number, (key, rate) = numbered
            first, mean = per_step[key.removesuffix("-compiled")]
            steps = max(NUM_POINTS, 1 + round((budget - first) / mean))
            arm = setup.arm(
                key, learning_rate=rate, max_steps=steps, warmup_steps=round(steps * WARMUP_SHARE)
            )
            process = ArmProcess(f"{NAMES[key]} at {rate:g}", arm)
            try:
                process.await_ready()
                points = _train(process, steps, Path(folder) / f"{number}.pt", scorer)
            finally:
                process.close()
            progress(
                f"{process.name}: held-out loss {points[-1].loss:.4f} after {points[-1].residues:,} residues "
                f"in {points[-1].seconds:.0f} s"
            )
            return points

        progress(f"{len(runs)} runs of {budget:,} residues, {jobs} at a time")
        with ThreadPoolExecutor(jobs) as pool:
            curves = list(pool.map(curve, enumerate(runs)))
    return summary(runs, curves, budget, setup)


def residues_per_step(setup: Setup) -> dict[str, tuple[float, float]]:
    """Expected real residues of each arm's first batch, and of the others, compiled or not."""
    split = ProteinSplit(setup.data, "train")
    _, lengths = split.draw(0, split.num_units, SEED, 0)
    shape = PackShape.of(split, setup.tokens_per_pack, MAX_RESIDUES)
    packs = islice(PackStream(split, shape, SEED).epoch(0), 1000)
    padded = GUIDANCE_BATCH_SIZE * float(np.minimum(lengths, GUIDANCE_TOKENS - SPECIAL_TOKENS).mean())
    cropped = np.minimum(lengths, MAX_RESIDUES)
    packed = statistics.mean(pack.num_residues for pack in packs)
    return {
        "a": (padded, padded),
        # The Trainer's sampler by length begins with the longest proteins.
        "a-prime": (setup.batch_size * float(cropped.max()), setup.batch_size * float(cropped.mean())),
        "b": (packed, packed),
    }


class _Scorer:
    """Scores weights one at a time: the process group and the processor are shared by the runs."""

    def __init__(self, setup: Setup, here: Processes) -> None:
        self._setup, self._here = setup, here
        self._split = ProteinSplit(setup.data, "validation")
        self._config = starting_config(ModelConfig(init_from=str(setup.model)))
        self._lock = Lock()

    def loss(self, weights: Path) -> float:
        with self._lock:
            model: nn.Module = with_weights(self._config, torch.load(weights))
            model.to(self._setup.device)
            return score(
                model,
                self._split,
                shape=PackShape.of(self._split, SCORING_TOKENS_PER_PACK, MAX_RESIDUES),
                mask_fraction=ModelConfig().mask_fraction,
                dtype=torch.bfloat16 if self._setup.is_bf16 else torch.float32,
                here=self._here,
                num_packs=NUM_SCORING_PACKS[self._setup.device.type],
            ).loss


def _train(process: ArmProcess, steps: int, weights: Path, scorer: _Scorer) -> list[Point]:
    """The arm's points, at equal distances in steps."""
    compiling = min(COMPILING_STEPS, steps // NUM_POINTS - 1)
    windows = [process.window(Grant(steps=compiling))] if compiling else []
    losses = []
    done = compiling
    for number in range(1, NUM_POINTS + 1):
        until = steps * number // NUM_POINTS
        windows.append(process.window(Grant(steps=until - done, weights_to=weights)))
        losses.append(scorer.loss(weights))
        done = until
    weights.unlink()
    return points_of(windows, losses)


def points_of(windows: Sequence[Window], losses: Sequence[float]) -> list[Point]:
    """Windows added up; those beyond the losses came first and count at the pace of the others."""
    num_first = len(windows) - len(losses)
    pace = statistics.median(window.seconds / window.steps for window in windows[num_first:])
    residues, seconds, steps = 0, 0.0, 0
    points = []
    for number, window in enumerate(windows):
        residues, steps = residues + window.residues, steps + window.steps
        seconds += window.steps * pace if number < num_first else window.seconds
        if number >= num_first:
            points.append(Point(residues, seconds, steps, losses[number - num_first]))
    return points


def summary(
    runs: Sequence[tuple[str, float]], curves: Sequence[list[Point]], budget: int, setup: Setup
) -> dict[str, Any]:
    best: dict[str, tuple[float, list[Point]]] = {}
    for (key, rate), points in zip(runs, curves, strict=True):
        name = NAMES[key].removesuffix(" compiled")
        if name not in best or points[-1].loss < best[name][1][-1].loss:
            best[name] = rate, points
    target = best["A"][1][-1].loss
    seconds = {name: seconds_to(points, target) for name, (_, points) in best.items()}
    unigram = unigram_perplexity(ProteinSplit(setup.data, "validation"))
    return {
        "seconds_are": "wall" if setup.device.type == "cuda" else "CPU seconds of one thread",
        "budget_residues": budget,
        "batches": {
            "A": f"{GUIDANCE_BATCH_SIZE} rows",
            "A'": f"{setup.batch_size} rows",
            "B": f"{setup.tokens_per_pack} tokens",
        },
        "unigram_loss": float(np.log(unigram)),
        "arms": {
            name: {
                "learning_rate": rate,
                "loss": points[-1].loss,
                "seconds": points[-1].seconds,
                "seconds_to_loss_of_a": seconds[name],
            }
            for name, (rate, points) in best.items()
        },
        "loss_of_b_over_a_prime": best["B"][1][-1].loss / best["A'"][1][-1].loss,
        "runs": [
            {"arm": NAMES[key], "learning_rate": rate, "points": [asdict(point) for point in points]}
            for (key, rate), points in zip(runs, curves, strict=True)
        ],
    }


def seconds_to(points: Sequence[Point], target: float) -> float | None:
    """When the loss first falls to the target, on straight lines between points; None if it never does."""
    before: Point | None = None
    for point in points:
        if point.loss <= target:
            if before is None:
                return point.seconds
            share = (before.loss - target) / (before.loss - point.loss)
            return before.seconds + share * (point.seconds - before.seconds)
        before = point
    return None


def table(result: dict[str, Any]) -> str:
    quality = result["quality"]
    machine, arms = result["environment"], quality["arms"]
    lines = [
        f"{machine['device']}, torch {machine['torch']}, transformers {machine['transformers']}; "
        f"ESM-2 {result['model']} on {result['data']}",
        f"validation loss after {quality['budget_residues']:,} real residues, each arm at the best of its "
        f"learning rates (guessing by composition: {quality['unigram_loss']:.4f})",
        f"seconds of training ({quality['seconds_are']}) until the final loss of A",
        "",
        f"{'':4}{'batch':>12}{'best lr':>9}{'loss':>9}{'seconds':>9}{'to A loss':>11}{'A over it':>11}",
    ]
    reference = arms["A"]["seconds_to_loss_of_a"]
    for name, arm in arms.items():
        needed = arm["seconds_to_loss_of_a"]
        times = f"{needed:>11.0f}{reference / needed:>11.2f}" if needed else f"{'never':>11}{'-':>11}"
        lines.append(
            f"{name:4}{quality['batches'][name]:>12}{arm['learning_rate']:>9g}{arm['loss']:>9.4f}"
            f"{arm['seconds']:>9.0f}{times}"
        )
    ratio = quality["loss_of_b_over_a_prime"]
    lines += ["", f"loss of B over A': {ratio - 1:+.2%} (accepted: at most {MAX_LOSS_RATIO - 1:+.1%})", ""]
    lines.append("every run: loss at fifths of the residues")
    for run in quality["runs"]:
        losses = " ".join(f"{point['loss']:.4f}" for point in run["points"])
        lines.append(f"{run['arm']:11} {run['learning_rate']:>7g}  {losses}")
    return "\n".join(lines)
