"""Stage 6: held-out loss of our trainer and of transformers' Trainer at equal numbers of real residues.

All start from the same weights and are scored in the same way, on the validation split under fixed masks.
Their time includes neither scoring nor compiling, because the first steps count at the pace of later ones.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from benchmarks.case import Case, Line, Settings, judged, read_lines
from benchmarks.contestant import Contestant, Grant, Window, windows_of
from benchmarks.figures import ceiling_of, seconds_are
from benchmarks.ours import MAX_RESIDUES, SEED, Ours, model_of, run_config, wanted_kernels
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
    """Amount of training, and the size of its steps."""

    residues: int
    tokens_per_pack: int
    tokens_per_step: int
    batch_size: int
    """Rows of the batch of ``tuned``."""
    scoring_packs: int = 0
    """Number of scored packs of the validation split; 0 for all."""
    compiled: bool = True


GPU = Budget(residues=90_000_000, tokens_per_pack=65536, tokens_per_step=524_288, batch_size=128)
CPU = Budget(
    residues=600_000, tokens_per_pack=1280, tokens_per_step=1280, batch_size=4, scoring_packs=8
)
"""Budget of a CPU. Its steps are as large as the guidance's, because the number of steps decides in such a
short run. A CPU would take longer to score the whole split than to train."""
REHEARSED = Budget(
    residues=30_000,
    tokens_per_pack=1280,
    tokens_per_step=2560,
    batch_size=2,
    scoring_packs=2,
    compiled=False,
)
# Learning rates.
GPU_RATES = (2e-3, 1e-3)
CPU_RATES = (1e-4, 4e-4)
# Contestants with the expected wall time of a case.
GPU_SECONDS = {"tuned": 200, "adamw": 120, "muon": 120}
CPU_SECONDS = {"guidance": 900, "tuned": 800, "adamw": 500, "muon": 600}
WARMUP_SHARE = 0.05
"""Share of the steps in which the learning rate rises; ``guidance`` has no warm-up."""
COMPILING_STEPS = 3
NUM_POINTS = 4
SCORING_TOKENS_PER_PACK = 4096
MAX_LOSS_RATIO = 1.005
"""Largest accepted ratio of our loss to that of ``tuned``."""
THEIRS = ("guidance", "tuned")
"""Contestants with transformers' Trainer."""


def cases(settings: Settings) -> list[Case]:
    rates = GPU_RATES if settings.as_on_gpu else CPU_RATES
    expected = GPU_SECONDS if settings.as_on_gpu else CPU_SECONDS
    return [
        Case("quality", "8M", contestant, f"lr={rate:g}", seconds)
        for rate in rates
        for contestant, seconds in expected.items()
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Train one contestant at one learning rate, and score it at quarters of its steps."""
    budget = GPU if settings.device.type == "cuda" else CPU
    if settings.rehearsal:
        budget = REHEARSED
    with TemporaryDirectory(prefix="bench-quality-") as name:
        folder = Path(name)
        model = model_of(case.size, settings, folder)
        contestant, steps = _contestant(case, settings, model, budget, folder)
        grants = grants_of(steps, folder)
        windows = windows_of(
            contestant,
            grants,
            lambda found: settings.record({"windows": [asdict(window) for window in found]}),
        )
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
    name = case.contestant
    rate = float(case.values["lr"])
    precision = ceiling_of(settings.device).precision
    split = RecordSplit(settings.data, "train")
    _, lengths = split.draw(0, split.num_units, seed=SEED, epoch=0)
    longest = GUIDANCE_TOKENS - SPECIAL_TOKENS if name == "guidance" else MAX_RESIDUES
    mean_length = float(np.minimum(lengths, longest).mean())
    batch_size = GUIDANCE_BATCH_SIZE if name == "guidance" else budget.batch_size
    accumulation = 1
    proteins_per_step = budget.tokens_per_step / (mean_length + SPECIAL_TOKENS)
    if name == "tuned":
        accumulation = max(1, round(proteins_per_step / batch_size))
    if name in THEIRS:
        proteins_per_step = batch_size * accumulation
    steps = max(2 * NUM_POINTS, round(budget.residues / (proteins_per_step * mean_length)))
    warmup_steps = 0 if name == "guidance" else round(steps * WARMUP_SHARE)
    if name in THEIRS:
        trainers = Trainers(
            name=name,
            model=model,
            rows=folder / "rows",
            data=settings.data,
            batch_size=batch_size,
            precision=precision,
            compiled=budget.compiled,
            accumulation=accumulation,
            learning_rate=rate,
            max_steps=steps,
            warmup_steps=warmup_steps,
        )
        return trainers, steps
    train = TrainConfig(
        max_steps=steps,
        tokens_per_pack=budget.tokens_per_pack,
        tokens_per_step=budget.tokens_per_step,
        precision=precision,
    )
    optimizer: Literal["muon", "adamw"] = "muon" if name == "muon" else "adamw"
    optim = OptimConfig(name=optimizer, lr=rate, warmup_steps=warmup_steps)
    config = run_config(model, settings.data, train, optim)
    return Ours(config, wanted_kernels(settings.kernels)), steps


def grants_of(steps: int, folder: Path) -> list[Grant]:
    """Return a window for compilation, and one with weights at its end for each quarter of the steps."""
    quarters = [steps * number // NUM_POINTS for number in range(1, NUM_POINTS + 1)]
    compiling_steps = min(COMPILING_STEPS, quarters[0] - 1)
    grants = [Grant(steps=compiling_steps)]
    for start, end in itertools.pairwise([compiling_steps, *quarters]):
        grants.append(Grant(steps=end - start, weights_to=folder / f"{end}.pt"))
    return grants


def _scores(
    files: Sequence[Path], settings: Settings, model: ModelConfig, budget: Budget
) -> list[float]:
    """Return the held-out losses of weights in files, in nats."""
    split = RecordSplit(settings.data, "validation")
    losses: list[float] = []
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
    """Return cumulative residues and seconds with each loss; compilation counts at the later pace."""
    compiling, *scored = windows
    seconds_per_step = statistics.median(window.seconds / window.steps for window in scored)
    residues = compiling.residues
    seconds = compiling.steps * seconds_per_step
    points: list[dict[str, float]] = []
    for window, loss in zip(scored, losses, strict=True):
        residues += window.residues
        seconds += window.seconds
        points.append({"residues": residues, "seconds": seconds, "loss": loss})
    return points


def _judged(case: Case, figures: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Compare with the best run of ``tuned`` on the same kind of device, if there is one."""
    losses: list[float] = []
    for line in read_lines(settings.lines):
        if (line["stage"], line["contestant"], line["verdict"]) != ("quality", "tuned", "measured"):
            continue
        theirs = line["figures"]
        if all(theirs[name] == figures[name] for name in ("budget_residues", "seconds_are")):
            losses.append(theirs["loss"])
    if case.contestant in THEIRS or settings.rehearsal or not losses:
        return {"verdict": "measured"}
    ratio = figures["loss"] / min(losses)
    verdict = judged(has_goal=True, is_met=ratio <= MAX_LOSS_RATIO)
    return {"loss_over_tuned": ratio, "verdict": verdict}


def seconds_to(points: Sequence[dict[str, float]], target: float) -> float | None:
    """Return the time at which the interpolated loss first falls to the target; None if it does not."""
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
    """Return one row per contestant at its best learning rate, with the time to the first one's loss."""
    best: dict[str, Any] = {}
    for line in sorted(lines, key=lambda line: -line["figures"]["loss"]):
        best[line["contestant"]] = line["figures"]
    order = [key for key in CPU_SECONDS if key in best]
    found: list[dict[str, str]] = []
    for key in order:
        figures = best[key]
        last = figures["points"][-1]
        needed = seconds_to(figures["points"], best[order[0]]["loss"])
        found.append(
            {
                "contestant": key if key in THEIRS else f"ours, {key}",
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
