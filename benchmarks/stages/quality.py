"""Stage 6: held-out loss of our trainer and of transformers' Trainer at equal numbers of real residues.

All start from the same weights and are scored alike, on the validation split under fixed masks. Scoring is
not part of their time, nor is compiling: the first steps count at the pace of the later ones.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.case import Case, Line, Settings, read_lines
from benchmarks.contestant import Contestant, Grant, Window, windows_of
from benchmarks.figures import ceiling_of, seconds_are
from benchmarks.ours import MAX_RESIDUES, SEED, Ours, model_of, run_config
from benchmarks.trainers import GUIDANCE_BATCH_SIZE, GUIDANCE_TOKENS, Trainers
from seqlm.proteins.model.pretrained import starting_config, with_weights
from seqlm.proteins.pretraining.evaluation import score, unigram_perplexity
from seqlm.runs.run_file import ModelConfig
from seqlm.training.config import OptimConfig, TrainConfig
from seqlm.training.objective import Place
from seqlm.training.packing import SPECIAL_TOKENS, PackShape
from seqlm.training.processes import processes
from seqlm.training.records import RecordSplit


@dataclass(frozen=True)
class Budget:
    """Amount of training, and its steps."""

    residues: int
    tokens_per_pack: int
    tokens_per_step: int
    batch_size: int
    """Rows of the batch of ``tuned``."""
    scoring_packs: int = 0
    """Packs of the validation split that are scored; 0 is all."""
    compiled: bool = True


GPU = Budget(90_000_000, 65536, 524_288, 128)
CPU = Budget(600_000, 1280, 1280, 4, scoring_packs=8)
"""Steps as large as the guidance's: in a run this short the number of steps decides. A CPU would take
longer to score the whole split than to train."""
REHEARSED = Budget(30_000, 1280, 2560, 2, scoring_packs=2, compiled=False)
GPU_RATES, CPU_RATES = (2e-3, 1e-3), (1e-4, 4e-4)
GPU_SECONDS = {"tuned": 200, "adamw": 120, "muon": 120}
CPU_SECONDS = {"guidance": 900, "tuned": 800, "adamw": 500, "muon": 600}
WARMUP_SHARE = 0.05
"""Share of the steps; ``guidance`` has no warm-up."""
COMPILING_STEPS = 3
NUM_POINTS = 4
SCORING_TOKENS_PER_PACK = 4096
MAX_LOSS_RATIO = 1.005
"""Our loss over that of ``tuned`` that is accepted."""


def cases(settings: Settings) -> list[Case]:
    rates, expected = (GPU_RATES, GPU_SECONDS) if settings.as_on_gpu else (CPU_RATES, CPU_SECONDS)
    return [
        Case("quality", "8M", contestant, f"lr={rate:g}", seconds)
        for rate in rates
        for contestant, seconds in expected.items()
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Train one contestant at one learning rate, and score it at quarters of its steps."""
    budget = REHEARSED if settings.rehearsal else GPU if settings.device.type == "cuda" else CPU
    with TemporaryDirectory(prefix="bench-quality-") as name:
        folder = Path(name)
        model = model_of(case.size, settings, folder)
        contestant, steps = _contestant(case, settings, model, budget, folder)
        grants = grants_of(steps, folder)
        windows = windows_of(contestant, grants)
        files = [grant.weights_to for grant in grants if grant.weights_to]
        points = points_of(windows, _scores(files, settings, model, budget))
    loss = points[-1]["loss"]
    figures = {
        "budget_residues": budget.residues,
        "learning_rate": float(case.values["lr"]),
        "steps": steps,
        "loss": loss,
        "perplexity": math.exp(loss),
        "seconds_are": seconds_are(settings.device),
        "points": points,
        "unigram_loss": math.log(unigram_perplexity(RecordSplit(settings.data, "validation"))),
    }
    return {**figures, **_judged(case, figures, settings)}


def _contestant(
    case: Case, settings: Settings, model: ModelConfig, budget: Budget, folder: Path
) -> tuple[Contestant, int]:
    """Return the contestant, and the steps in which it sees the budget's residues."""
    split = RecordSplit(settings.data, "train")
    _, lengths = split.draw(0, split.num_units, SEED, 0)
    name, rate, precision = case.contestant, float(case.values["lr"]), ceiling_of(settings.device)[1]
    longest = GUIDANCE_TOKENS - SPECIAL_TOKENS if name == "guidance" else MAX_RESIDUES
    mean = float(np.minimum(lengths, longest).mean())
    rows = budget.tokens_per_step / (mean + SPECIAL_TOKENS)
    if name in ("guidance", "tuned"):
        batch = GUIDANCE_BATCH_SIZE if name == "guidance" else budget.batch_size
        accumulation = 1 if name == "guidance" else max(1, round(rows / batch))
        rows = batch * accumulation
    steps = max(2 * NUM_POINTS, round(budget.residues / (rows * mean)))
    warmup = 0 if name == "guidance" else round(steps * WARMUP_SHARE)
    if name in ("guidance", "tuned"):
        trained = folder / "rows", settings.data, batch, precision, budget.compiled
        return Trainers(name, model, *trained, accumulation, rate, steps, warmup), steps
    train = TrainConfig(
        max_steps=steps,
        tokens_per_pack=budget.tokens_per_pack,
        tokens_per_step=budget.tokens_per_step,
        precision=precision,
    )
    optim = OptimConfig(name="muon" if name == "muon" else "adamw", lr=rate, warmup_steps=warmup)
    return Ours(run_config(model, settings.data, train, optim)), steps


def grants_of(steps: int, folder: Path) -> list[Grant]:
    """Windows that end after compilation, and with weights at quarters of the steps."""
    quarters = [steps * number // NUM_POINTS for number in range(1, NUM_POINTS + 1)]
    compiled = min(COMPILING_STEPS, quarters[0] - 1)
    return [
        Grant(steps=compiled),
        *(
            Grant(steps=end - start, weights_to=folder / f"{end}.pt")
            for start, end in itertools.pairwise([compiled, *quarters])
        ),
    ]


def _scores(files: Sequence[Path], settings: Settings, model: ModelConfig, budget: Budget) -> list[float]:
    """Held-out losses in nats of weights in files."""
    split = RecordSplit(settings.data, "validation")
    losses = []
    with processes() as here:
        for file in files:
            scored: nn.Module = with_weights(starting_config(model), torch.load(file))
            place = Place(
                here,
                PackShape.of(split, SCORING_TOKENS_PER_PACK, MAX_RESIDUES),
                torch.bfloat16 if here.device.type == "cuda" else torch.float32,
            )
            found = score(
                scored.to(here.device),
                split,
                place,
                mask_fraction=model.mask_fraction,
                num_packs=budget.scoring_packs,
            )
            losses.append(found.values["eval_loss"])
    return losses


def points_of(windows: Sequence[Window], losses: Sequence[float]) -> list[dict[str, float]]:
    """Add windows up; the first, in which much is compiled, counts at the pace of the others."""
    compiling, *scored = windows
    pace = statistics.median(window.seconds / window.steps for window in scored)
    residues, seconds, points = compiling.residues, compiling.steps * pace, []
    for window, loss in zip(scored, losses, strict=True):
        residues, seconds = residues + window.residues, seconds + window.seconds
        points.append({"residues": residues, "seconds": seconds, "loss": loss})
    return points


def _judged(case: Case, figures: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Compare with the best run of ``tuned`` on the same kind of device, if there is one."""
    same = ("budget_residues", "seconds_are")
    losses = [
        line["figures"]["loss"]
        for line in read_lines(settings.lines)
        if (line["stage"], line["contestant"], line["verdict"]) == ("quality", "tuned", "measured")
        and all(line["figures"][name] == figures[name] for name in same)
    ]
    if case.contestant in ("guidance", "tuned") or settings.rehearsal or not losses:
        return {"verdict": "measured"}
    ratio = figures["loss"] / min(losses)
    return {"loss_over_tuned": ratio, "verdict": "passed" if ratio <= MAX_LOSS_RATIO else "missed"}


def seconds_to(points: Sequence[dict[str, float]], target: float) -> float | None:
    """Return when the loss first falls to the target, on straight lines between points; None if never."""
    before: dict[str, float] | None = None
    for point in points:
        if point["loss"] <= target:
            if before is None:
                return point["seconds"]
            share = (before["loss"] - target) / (before["loss"] - point["loss"])
            return before["seconds"] + share * (point["seconds"] - before["seconds"])
        before = point
    return None


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per contestant, at its best learning rate; times are compared with the first one's."""
    best: dict[str, Any] = {}
    for line in sorted(lines, key=lambda line: -line["figures"]["loss"]):
        best[line["contestant"]] = line["figures"]
    order = [key for key in CPU_SECONDS if key in best]
    found = []
    for key in order:
        figures, last = best[key], best[key]["points"][-1]
        needed = seconds_to(figures["points"], best[order[0]]["loss"])
        found.append(
            {
                "contestant": key if key in ("guidance", "tuned") else f"ours, {key}",
                "learning rate": f"{figures['learning_rate']:g}",
                "residues": f"{last['residues']:,}",
                "held-out loss": f"{figures['loss']:.3f}",
                "perplexity": f"{figures['perplexity']:.2f}",
                "seconds": f"{last['seconds']:,.0f}",
                f"until the loss of {order[0]}": f"{needed:,.0f}" if needed else "not reached",
                "loss by composition": f"{figures['unigram_loss']:.3f}",
            }
        )
    return found
