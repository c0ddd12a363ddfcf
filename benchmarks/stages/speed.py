"""Stage 4: residues per second of our trainer, by size and tokens per pack."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from benchmarks.case import Case, Line, Settings, judged
from benchmarks.contestant import Grant, Window, steady, windows_of
from benchmarks.figures import ceiling_of, figures_of, shown
from benchmarks.ours import (
    LEARNING_RATE,
    RECIPE_TOKENS,
    Ours,
    family_with,
    model_of,
    run_config,
    wanted_kernels,
)
from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.training.config import OptimConfig, TrainConfig


class Shape(NamedTuple):
    """Shape of a case."""

    size: str
    tokens_per_pack: int
    seconds: float
    """Expected wall time of the measurement."""
    warm_seconds: float = 0.0
    """Expected wall time of the warm-up."""
    gigabytes: float = 0.0
    more: str = ""
    """Further settings."""


SHAPES = (
    # The likely best shape of a size comes first. Warm-ups of the first four took 24, 40, 40 and 33 s on an
    # H200, beside others, and the measurements of 8M and 650M 10 and 12 s in windows of 4 s. The other times
    # are estimates: two windows, one more step of the recipe, and four seconds for weights and data.
    Shape("8M", 65536, seconds=11, warm_seconds=25, gigabytes=6),
    Shape("650M", 16384, seconds=13, warm_seconds=40, gigabytes=39),
    Shape("35M", 65536, seconds=16, warm_seconds=40, gigabytes=16),
    Shape("150M", 32768, seconds=24, warm_seconds=33, gigabytes=29),
    Shape("3B", 4096, seconds=16, warm_seconds=42, gigabytes=67, more=",recompute=0"),
    # Estimated from those above; none of these has been measured.
    Shape("3B", 16384, seconds=18, warm_seconds=45, gigabytes=75, more=",recompute=1"),
    Shape("650M", 16384, seconds=14, warm_seconds=24, gigabytes=36, more=",optimizer=muon"),
    Shape("8M", 131072, seconds=13, warm_seconds=25, gigabytes=11),
    Shape("8M", 32768, seconds=13, warm_seconds=25, gigabytes=3),
    Shape("35M", 32768, seconds=16, warm_seconds=22, gigabytes=8),
    Shape("150M", 65536, seconds=24, warm_seconds=28, gigabytes=55),
    Shape("650M", 32768, seconds=14, warm_seconds=24, gigabytes=65),
    Shape("300M", 16384, seconds=14, warm_seconds=28, gigabytes=30),
    Shape("600M", 16384, seconds=14, warm_seconds=28, gigabytes=45),
    Shape("300M", 32768, seconds=14, warm_seconds=28, gigabytes=55),
)
CPU_SHAPES = (
    Shape("8M", 4096, seconds=300),
    Shape("300M", 4096, seconds=900, more=",layers=4"),
)
"""On a Zen 4 core, packs of 2,048 and 4,096 tokens reached 2.11 and 2.18 k residues/s."""
REHEARSED_TOKENS = 2048
REHEARSED_PACKS = 2
JUDGED_GPU = "H200"
"""GPU with floors and goals. Other GPUs have none until they have been measured."""
FLOORS = {"8M": 1.4e6, "35M": 0.6e6, "150M": 200e3, "650M": 84e3, "3B": 22.6e3}
"""Residues/s of ESM-2's recipe on one H200, below which a case is ``missed``."""
GOALS = {"8M": 3.6e6, "35M": 1.3e6, "150M": 380e3, "650M": 127e3, "3B": 35e3}
"""Residues/s of ESM-2's recipe on one H200 that the trainer is to reach."""
RUN_RECIPE = ("8M", "35M", "150M")
"""Sizes for which steps of the recipe are run. A step of the others would take most of a minute."""
FEW_PACKS = 4
"""Packs of a step from which the recipe's rate is computed for the other sizes."""
WARMUP_STEPS = 3
BEFORE_KERNELS = "none"
"""Kernels in the lines of commits that had none."""


def cases(settings: Settings) -> list[Case]:
    shapes = SHAPES if settings.as_on_gpu else CPU_SHAPES
    return [
        Case(
            "speed",
            shape.size,
            "ours",
            f"tokens_per_pack={shape.tokens_per_pack}{shape.more}",
            shape.seconds,
            warm_seconds=shape.warm_seconds,
            gigabytes=shape.gigabytes,
            process=f"ours {shape.size}" if settings.as_on_gpu else "",
        )
        for shape in shapes
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Measure steps of one pack, and steps of the recipe (2 M tokens).

    If the recipe's rate is computed, it follows from the times of steps of one pack and of four packs. A step
    has work per pack, and work that is done once (clipping, the optimizer).
    """
    device = settings.device
    values = case.values
    tokens = REHEARSED_TOKENS if settings.rehearsal else int(values["tokens_per_pack"])
    # Steps of two packs compile all that the recipe's need.
    packs = REHEARSED_PACKS if settings.is_short else RECIPE_TOKENS // tokens
    is_computed = not settings.as_on_gpu or case.size not in RUN_RECIPE
    several = min(packs, FEW_PACKS) if is_computed else packs
    recomputed = values.get("recompute") == "1"
    ceiling = ceiling_of(device)
    train = TrainConfig(
        tokens_per_pack=tokens,
        tokens_per_step=tokens,
        precision=ceiling.precision,
        activation_checkpointing=recomputed,
    )
    is_muon = values.get("optimizer") == "muon"
    optim = OptimConfig(name="muon" if is_muon else "adamw", lr=LEARNING_RATE, warmup_steps=0)
    one_pack_grant = steady(settings)
    recipe_grant = replace(
        one_pack_grant, steps=-(-one_pack_grant.steps // several), packs_per_step=several
    )
    with TemporaryDirectory() as folder:
        model = model_of(case.size, settings, Path(folder), int(values.get("layers", 0)))
        config = run_config(model, settings.data, train, optim)
        ours = Ours(config, wanted_kernels(settings.kernels))
        grants = (Grant(steps=WARMUP_STEPS), one_pack_grant, recipe_grant)
        measured = partial(
            figures_of,
            model=model,
            device=device,
            tokens_per_pack=tokens,
            recomputed=recomputed,
        )

        def record(windows: list[Window]) -> None:
            window = windows[-1]
            print(f"{window.steps} steps: {window.residues_per_second:,.0f} residues/s", flush=True)
            if len(windows) == 2:
                figures = measured([window], ceilings=[ceiling.flops_per_second])
                settings.record({"one_pack_steps": figures, "precision": ceiling.precision})

        _, one_pack, recipe = windows_of(ours, grants, record)
        ceilings = [ceiling.flops_per_second, ceiling_of(device).flops_per_second]
        one_pack_figures = measured([one_pack], ceilings=ceilings)
        recipe_figures = measured([recipe], ceilings=ceilings)
    step_time = split_time(one_pack, recipe, several)
    rate = recipe.residues_per_second
    if is_computed:
        measured_per_pack = recipe.seconds / recipe.steps / several
        rate *= measured_per_pack / (step_time.per_pack + step_time.once / packs)
    recipe_figures |= {"residues_per_second": rate, "is_computed": is_computed}
    for name in ("model_mfu", "executed_mfu", "share_of_ceiling"):
        recipe_figures[name] *= rate / recipe.residues_per_second
    return {
        "recipe": recipe_figures,
        "one_pack_steps": one_pack_figures,
        "seconds_per_pack": step_time.per_pack,
        "seconds_per_step_beside_packs": step_time.once,
        "precision": ceiling.precision,
        "kernels": recipe.notes["kernels"],
        "verdict": verdict(case.size, rate, settings),
    }


class StepTime(NamedTuple):
    """Seconds of a step."""

    per_pack: float
    once: float
    """Time of the work that a step does once."""


def split_time(one_pack: Window, recipe: Window, packs: int) -> StepTime:
    """Return the time of a step from windows with steps of one pack and of ``packs``."""
    single = one_pack.seconds / one_pack.steps
    several = recipe.seconds / recipe.steps
    per_pack = min(single, (several - single) / (packs - 1))
    return StepTime(per_pack, once=single - per_pack)


def verdict(size: str, rate: float, settings: Settings) -> str:
    """Judge by the floor of ``JUDGED_GPU``."""
    is_cuda = settings.device.type == "cuda"
    has_floor = is_cuda and JUDGED_GPU in torch.cuda.get_device_name(settings.device)
    if not has_floor or size not in FLOORS:
        return "measured"
    return judged(has_goal=True, is_met=rate >= FLOORS[size])


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per shape, the smallest model first."""
    found: list[dict[str, str]] = []
    for line in sorted(lines, key=by_size):
        recipe = line["figures"]["recipe"]
        one_pack = line["figures"]["one_pack_steps"]
        note = " (computed)" if recipe["is_computed"] else ""
        plural = "s" if recipe["steps"] > 1 else ""
        found.append(
            {
                "model": line["size"],
                "shape": line["shape"].replace(",", ", ").replace("_", " "),
                "residues/s, recipe's steps": f"{recipe['residues_per_second']:,.0f}{note}",
                "one-pack steps": f"{one_pack['residues_per_second']:,.0f}",
                **shown(recipe),
                "goal": _goal(line),
                "window": f"{recipe['seconds']:.1f} s, {recipe['steps']} step{plural}",
                "kernels": line["figures"].get("kernels", BEFORE_KERNELS),
                "commit": line["commit"][:7],
            }
        )
    return found


def by_size(line: Line) -> tuple[str, int]:
    """Return the place of a line's model among the published sizes."""
    family = family_with(line["size"])
    return family, list(MODEL_FAMILIES[family].sizes).index(line["size"])


def _goal(line: Line) -> str:
    """Return the goal of a line's size, and the share of it that was reached."""
    size = line["size"]
    if JUDGED_GPU not in line["device"] or size not in GOALS:
        return "-"
    rate = line["figures"]["recipe"]["residues_per_second"]
    text = f"{GOALS[size]:,.0f} ({rate / GOALS[size]:.0%} reached)"
    if rate < FLOORS[size]:
        text += f"; below the floor of {FLOORS[size]:,.0f}"
    return text
