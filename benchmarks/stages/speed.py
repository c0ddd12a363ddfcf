"""Stage 4: residues per second of our trainer, by size and tokens per pack."""

import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import REHEARSED, STEADY, Grant, Window, windows_of
from benchmarks.figures import ceiling_of, figures_of, shown
from benchmarks.ours import LEARNING_RATE, RECIPE_TOKENS, Ours, model_of, run_config
from seqlm.training.config import OptimConfig, TrainConfig

SHAPES = (
    # Size, tokens per pack, further settings, expected seconds. The likely best shape of a size comes first.
    ("8M", 65536, "", 85),
    ("650M", 16384, "", 115),
    ("35M", 65536, "", 90),
    ("150M", 32768, "", 110),
    ("3B", 4096, ",recompute=0", 130),
    ("3B", 16384, ",recompute=1", 140),
    ("650M", 16384, ",optimizer=muon", 115),
    ("8M", 131072, "", 85),
    ("8M", 32768, "", 85),
    ("35M", 32768, "", 90),
    ("150M", 65536, "", 110),
    ("650M", 32768, "", 115),
    ("300M", 16384, "", 110),
    ("600M", 16384, "", 115),
    ("300M", 32768, "", 110),
)
CPU_SHAPES = (("8M", 4096, "", 300), ("300M", 4096, ",layers=4", 900))
"""On a Zen 4 core packs of 2,048 and 4,096 tokens made 2.11 and 2.18 k residues/s."""
FLOORS = {"8M": 1.4e6, "35M": 0.6e6, "150M": 200e3, "650M": 84e3, "3B": 22.6e3}
GOALS = {"8M": 2.0e6, "35M": 0.8e6, "150M": 250e3, "650M": 101e3, "3B": 26e3}
"""Residues/s of ESM-2's recipe on one H100; an H200 has the same arithmetic and more bandwidth."""
RUN_RECIPE = ("8M", "35M", "150M")
"""Sizes whose recipe's steps are run; steps of the others would take most of a minute."""
FEW_PACKS = 4
WARMUP_STEPS = 3


def cases(settings: Settings) -> list[Case]:
    return [
        Case("speed", size, "ours", f"tokens_per_pack={tokens}{more}", seconds)
        for size, tokens, more, seconds in (SHAPES if settings.as_on_gpu else CPU_SHAPES)
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Measure steps of one pack, and steps of the recipe (2 M tokens).

    Where the recipe's rate is computed, it follows from two measured times: a step of one pack is a pack
    and what a step does once (clipping, the optimizer); a step of four packs is four packs and that.
    """
    device, values = settings.device, case.values
    tokens = 2048 if settings.rehearsal else int(values["tokens_per_pack"])
    packs = 2 if settings.rehearsal else RECIPE_TOKENS // tokens
    is_computed = not settings.as_on_gpu or case.size not in RUN_RECIPE
    several = min(packs, FEW_PACKS) if is_computed else packs
    recomputed = values.get("recompute") == "1"
    ceiling, precision = ceiling_of(device)
    train = TrainConfig(
        tokens_per_pack=tokens,
        tokens_per_step=tokens,
        precision=precision,
        activation_checkpointing=recomputed,
    )
    muon = values.get("optimizer") == "muon"
    optim = OptimConfig(name="muon" if muon else "adamw", lr=LEARNING_RATE, warmup_steps=0)
    steady = REHEARSED if settings.rehearsal else STEADY
    more = replace(steady, steps=-(-steady.steps // several), packs_per_step=several)
    with TemporaryDirectory() as folder:
        model = model_of(case.size, settings, Path(folder), int(values.get("layers", 0)))
        ours = Ours(run_config(model, settings.data, train, optim))
        _, one, recipe = windows_of(ours, (Grant(steps=WARMUP_STEPS), steady, more))
        ceilings = [ceiling, ceiling_of(device)[0]]
        one_pack, measured = (
            figures_of([found], model, device, ceilings, tokens_per_pack=tokens, recomputed=recomputed)
            for found in (one, recipe)
        )
    pack, once = split_time(one, recipe, several)
    rate = recipe.residues_per_second
    if is_computed:
        rate *= (recipe.seconds / recipe.steps / several) / (pack + once / packs)
    scaled = ("model_mfu", "executed_mfu", "share_of_ceiling")
    return {
        "recipe": {
            **measured,
            "residues_per_second": rate,
            **{name: measured[name] * rate / recipe.residues_per_second for name in scaled},
            "is_computed": is_computed,
        },
        "one_pack_steps": one_pack,
        "seconds_per_pack": pack,
        "seconds_per_step_beside_packs": once,
        "precision": precision,
        "verdict": verdict(case.size, rate, settings),
    }


def split_time(one: Window, recipe: Window, packs: int) -> tuple[float, float]:
    """Seconds of a pack, and of what a step does once, from steps of one pack and of ``packs``."""
    single, several = one.seconds / one.steps, recipe.seconds / recipe.steps
    pack = min(single, (several - single) / (packs - 1))
    return pack, single - pack


def verdict(size: str, rate: float, settings: Settings) -> str:
    """Judge by the floor on an H100 or H200; elsewhere there is none."""
    if settings.device.type != "cuda" or not re.search(
        r"H[12]00", torch.cuda.get_device_name(settings.device)
    ):
        return "measured"
    if size not in FLOORS:
        return "measured"
    return "passed" if rate >= FLOORS[size] else "missed"


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per shape."""
    return [
        {
            "model": line["size"],
            "shape": line["shape"].replace(",", ", ").replace("_", " "),
            "residues/s, recipe's steps": f"{line['figures']['recipe']['residues_per_second']:,.0f}"
            + " (computed)" * line["figures"]["recipe"]["is_computed"],
            "one-pack steps": f"{line['figures']['one_pack_steps']['residues_per_second']:,.0f}",
            **shown(line["figures"]["recipe"]),
            "floor, goal": _target(line),
        }
        for line in lines
    ]


def _target(line: Line) -> str:
    if line["verdict"] not in ("passed", "missed"):
        return "-"
    rate = line["figures"]["recipe"]["residues_per_second"]
    reached = "goal reached" if rate >= GOALS[line["size"]] else line["verdict"]
    return f"{FLOORS[line['size']]:,.0f}, {GOALS[line['size']]:,.0f}: {reached}"
