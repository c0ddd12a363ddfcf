"""Stage 6: held-out loss of our trainer and of transformers' Trainer at equal numbers of real residues.

All start from the same weights and are scored in the same way, on the validation split under fixed masks. Scoring
is not part of their time, nor is compiling: the first steps count at the pace of the later ones. With ``resume``
our trainer also saves half way, and a second one resumes there: the losses must agree within a tolerance, because
flash attention's backward pass is not deterministic.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.case import Case, Line, Settings, read_lines
from benchmarks.contestant import Contestant, Grant, Window, windows_of
from benchmarks.figures import precision_of
from benchmarks.ours import MAX_RESIDUES, SEED, Ours, model_of, run_config
from benchmarks.trainers import GUIDANCE_BATCH_SIZE, GUIDANCE_TOKENS, Trainers
from workloads.esm2.config import ModelConfig, OptimConfig, TrainConfig
from workloads.esm2.evaluation import score, unigram_perplexity
from workloads.esm2.packing import SPECIAL_TOKENS, PackShape
from workloads.esm2.pretrained import starting_config, with_weights
from workloads.esm2.processes import processes
from workloads.esm2.proteins import ProteinSplit


@dataclass(frozen=True)
class Budget:
    """How much is trained, in which steps."""

    residues: int
    tokens_per_pack: int
    tokens_per_step: int
    batch_size: int
    """Rows of the Trainer's batch."""
    compiled: bool = True
    scoring_packs: int = 0
    """Packs of the validation split that are scored; 0 is all."""


GPU = Budget(90_000_000, 65536, 524_288, 128)
CPU = Budget(600_000, 1280, 1280, 4, scoring_packs=8)
"""Steps as large as the guidance's: in a run this short the number of steps decides. A CPU would take longer to
score the whole split than to train."""
REHEARSED = Budget(16_000, 1280, 2560, 4, compiled=False, scoring_packs=2)
GPU_RATES, CPU_RATES = (2e-3, 1e-3), (1e-4, 4e-4)
GPU_CONTESTANTS = {"tuned": 200, "adamw": 120, "muon": 120}
"""By expected seconds."""
CPU_CONTESTANTS = {"guidance": 900, "tuned": 800, "adamw": 500, "muon": 600}
RESUME_SECONDS = 80
WARMUP_SHARE = 0.05
"""Of the steps; ``guidance`` has no warm-up."""
COMPILING_STEPS = 3
NUM_POINTS = 4
SCORING_TOKENS_PER_PACK = 4096
MAX_LOSS_RATIO = 1.005
"""Our loss over that of ``tuned`` that is accepted."""
RESUME_TOLERANCE = 0.005
"""Relative difference of the final loss after resuming that is accepted; as much as between contestants."""
FIRST_STEP_TOLERANCE = 1e-4
"""The same of the loss of the first step after resuming: weights are equal and the forward pass is deterministic,
so only sums taken in another order differ."""


@dataclass(frozen=True)
class Point:
    residues: int
    seconds: float
    steps: int
    loss: float
    """On the validation split, in nats."""


def cases(settings: Settings) -> list[Case]:
    rates = GPU_RATES if settings.as_on_gpu else CPU_RATES
    contestants = GPU_CONTESTANTS if settings.as_on_gpu else CPU_CONTESTANTS
    found = []
    for rate in rates:
        for contestant, seconds in contestants.items():
            resumes = settings.as_on_gpu and contestant == "adamw" and rate == rates[0]
            shape = f"lr={rate:g}" + (",resume=1" if resumes else "")
            found.append(Case("quality", "8M", contestant, shape, seconds + RESUME_SECONDS * resumes))
    return found


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Train one contestant at one learning rate, score it at quarters of its steps, and judge the last."""
    budget = REHEARSED if settings.rehearsal else GPU if settings.device.type == "cuda" else CPU
    resumes = "resume" in case.values
    with TemporaryDirectory(prefix="bench-quality-") as name:
        folder = Path(name)
        model = model_of(case.size, settings, folder)
        contestant, steps = _contestant(case, settings, model, budget, folder)
        grants = _grants(steps, folder, resumes)
        windows = windows_of(contestant, grants)
        files = [grant.weights_to for grant in grants if grant.weights_to]
        again: list[Window] = []
        if resumes:
            half, last = steps // 2, folder / "resumed.pt"
            again = windows_of(contestant, (Grant(), Grant(steps=steps - half - 1, weights_to=last)))
            files.append(last)
        losses = _scores(files, settings, model, budget)
    points = points_of(windows, [bool(grant.weights_to) for grant in grants], losses)
    figures: dict[str, Any] = {
        "budget_residues": budget.residues,
        "learning_rate": float(case.values["lr"]),
        "loss": points[-1].loss,
        "perplexity": math.exp(points[-1].loss),
        "residues": points[-1].residues,
        "seconds": points[-1].seconds,
        "seconds_are": "wall" if settings.device.type == "cuda" else "CPU seconds of one thread",
        "points": [asdict(point) for point in points],
        "unigram_loss": math.log(unigram_perplexity(ProteinSplit(settings.data, "validation"))),
    }
    agrees = True
    if resumes:
        first = windows[next(number for number, grant in enumerate(grants) if grant.save) + 1]
        figures["resumed"] = {
            "first_step_difference": abs(again[0].loss / first.loss - 1),
            "final_difference": abs(losses[-1] / points[-1].loss - 1),
        }
        agrees = (
            figures["resumed"]["first_step_difference"] <= FIRST_STEP_TOLERANCE
            and figures["resumed"]["final_difference"] <= RESUME_TOLERANCE
        )
    return {**figures, **_judged(case, figures, agrees, settings)}


def _contestant(
    case: Case, settings: Settings, model: ModelConfig, budget: Budget, folder: Path
) -> tuple[Contestant, int]:
    """Return the contestant, and the steps in which it sees the budget's residues."""
    split = ProteinSplit(settings.data, "train")
    _, lengths = split.draw(0, split.num_units, SEED, 0)
    is_guidance = case.contestant == "guidance"
    longest = GUIDANCE_TOKENS - SPECIAL_TOKENS if is_guidance else MAX_RESIDUES
    mean = float(np.minimum(lengths, longest).mean())
    per_step = budget.tokens_per_step * mean / (mean + SPECIAL_TOKENS)
    batch = GUIDANCE_BATCH_SIZE if is_guidance else budget.batch_size
    accumulation = 1 if is_guidance else max(1, round(per_step / (mean * batch)))
    is_trainers = is_guidance or case.contestant == "tuned"
    if is_trainers:
        per_step = mean * batch * accumulation
    steps = max(2 * NUM_POINTS, round(budget.residues / per_step))
    rate, warmup = float(case.values["lr"]), 0 if is_guidance else round(steps * WARMUP_SHARE)
    precision = precision_of(settings.device)
    if is_trainers:
        return Trainers(
            case.contestant,
            model,
            folder / "rows",
            settings.data,
            batch,
            precision,
            budget.compiled,
            accumulation,
            rate,
            steps,
            warmup,
        ), steps
    train = TrainConfig(
        max_steps=steps,
        tokens_per_pack=budget.tokens_per_pack,
        tokens_per_step=budget.tokens_per_step,
        precision=precision,
    )
    optim = OptimConfig(name="muon" if case.contestant == "muon" else "adamw", lr=rate, warmup_steps=warmup)
    checkpoints = folder / "checkpoints" if "resume" in case.values else None
    return Ours(run_config(model, settings.data, train, optim), checkpoints), steps


def _grants(steps: int, folder: Path, resumes: bool) -> list[Grant]:
    """Windows that end after compilation and at quarters of the steps; with ``resumes`` one step more has its own."""
    quarters = {steps * number // NUM_POINTS: number for number in range(1, NUM_POINTS + 1)}
    half = steps // 2
    ends = sorted(
        {min(COMPILING_STEPS, min(quarters) - 1), *quarters, *({half + 1} if resumes else ())} - {0}
    )
    return [
        Grant(
            steps=end - start,
            weights_to=folder / f"{quarters[end]}.pt" if end in quarters else None,
            save=resumes and end == half,
        )
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def _scores(files: Sequence[Path], settings: Settings, model: ModelConfig, budget: Budget) -> list[float]:
    """Held-out losses in nats of weights in files."""
    split = ProteinSplit(settings.data, "validation")
    config = starting_config(model)
    losses = []
    with processes() as here:
        for file in files:
            scored: nn.Module = with_weights(config, torch.load(file)).to(here.device)
            found = score(
                scored,
                split,
                shape=PackShape.of(split, SCORING_TOKENS_PER_PACK, MAX_RESIDUES),
                mask_fraction=model.mask_fraction,
                dtype=torch.bfloat16 if here.device.type == "cuda" else torch.float32,
                here=here,
                num_packs=budget.scoring_packs,
            )
            losses.append(found.loss)
    return losses


def points_of(windows: Sequence[Window], scored: Sequence[bool], losses: Sequence[float]) -> list[Point]:
    """Add windows up to points; the first, in which much is compiled, counts at the pace of the others."""
    pace = statistics.median(window.seconds / window.steps for window in windows[1:] or windows)
    residues, seconds, steps = 0, 0.0, 0
    points, remaining = [], iter(losses)
    for number, (window, is_point) in enumerate(zip(windows, scored, strict=True)):
        residues, steps = residues + window.residues, steps + window.steps
        seconds += window.steps * pace if number == 0 else window.seconds
        if is_point:
            points.append(Point(residues, seconds, steps, next(remaining)))
    return points


def _judged(case: Case, figures: dict[str, Any], agrees: bool, settings: Settings) -> dict[str, Any]:
    """Compare with the best run of ``tuned`` on the same device, if there is one."""
    if case.contestant in ("guidance", "tuned"):
        return {"verdict": "measured"}
    losses = [
        line["figures"]["loss"]
        for line in read_lines(settings.lines)
        if (line["stage"], line["contestant"], line["verdict"]) == ("quality", "tuned", "measured")
        and line["figures"]["budget_residues"] == figures["budget_residues"]
        and line["figures"]["seconds_are"] == figures["seconds_are"]
    ]
    ratio = figures["loss"] / min(losses) if losses else None
    met = agrees and (ratio is None or ratio <= MAX_LOSS_RATIO)
    verdict = "missed" if not met else "measured" if ratio is None or settings.rehearsal else "passed"
    return {"loss_over_tuned": ratio, "verdict": verdict}


def seconds_to(points: Sequence[Point], target: float) -> float | None:
    """Return when the loss first falls to the target, on straight lines between points; None if it never does."""
    before: Point | None = None
    for point in points:
        if point.loss <= target:
            if before is None:
                return point.seconds
            share = (before.loss - target) / (before.loss - point.loss)
            return before.seconds + share * (point.seconds - before.seconds)
        before = point
    return None


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per contestant, at its best learning rate; the first is what the times are compared with."""
    best: dict[str, Line] = {}
    for line in lines:
        key = line["contestant"]
        if key not in best or line["figures"]["loss"] < best[key]["figures"]["loss"]:
            best[key] = line
    order = [key for key in ("guidance", "tuned", "adamw", "muon") if key in best]
    reference = best[order[0]]["figures"]
    found = []
    for key in order:
        figures = best[key]["figures"]
        needed = seconds_to([Point(**point) for point in figures["points"]], reference["loss"])
        found.append(
            {
                "contestant": key if key in ("guidance", "tuned") else f"ours, {key}",
                "learning rate": f"{figures['learning_rate']:g}",
                "residues": f"{figures['residues']:,}",
                "held-out loss": f"{figures['loss']:.3f}",
                "perplexity": f"{figures['perplexity']:.2f}",
                "seconds": f"{figures['seconds']:,.0f}",
                f"seconds to the loss of {order[0]}": f"{needed:,.0f}" if needed else "not reached",
                "guessing by composition": f"{reference['unigram_loss']:.3f}",
            }
        )
    return found
