"""Stage 4: residues per second of our trainer, by size and tokens per pack."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import REHEARSED, STEADY, Grant, Window, windows_of
from benchmarks.figures import Arithmetic, ceiling_of, figures_of, precision_of
from benchmarks.ours import ENDLESS, LEARNING_RATE, RECIPE_TOKENS, Ours, model_of, run_config
from workloads.esm2.config import OptimConfig, TrainConfig

SHAPES = (
    # size, tokens per pack, further settings, expected seconds; the likely best shape of each size comes first.
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
)
CPU_SHAPES = (("8M", 4096, "", 300),)
"""On a Zen 4 core packs of 2,048 and 4,096 tokens made 2.11 and 2.18 k residues/s."""
FLOORS = {"8M": 1.4e6, "35M": 0.6e6, "150M": 200e3, "650M": 84e3, "3B": 22.6e3}
GOALS = {"8M": 2.0e6, "35M": 0.8e6, "150M": 250e3, "650M": 101e3, "3B": 26e3}
"""Residues/s of the recipe on one H100; an H200 has the same arithmetic and more bandwidth."""
MEASURED_RECIPE = ("8M", "35M", "150M")
"""Sizes whose recipe's steps are run; steps of the others would take most of a minute."""
FEW_PACKS = 4
WARMUP_STEPS = 3


def cases(settings: Settings) -> list[Case]:
    shapes = SHAPES if settings.as_on_gpu else CPU_SHAPES
    return [
        Case("speed", size, "ours", f"tokens_per_pack={tokens}{more}", seconds)
        for size, tokens, more, seconds in shapes
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Windows of one-pack steps and of the recipe's steps (2 M tokens).

    Where the recipe's rate is computed, it follows from two measured times: a step of one pack is a pack and what
    a step does once (clipping, the optimizer), a step of four packs is four packs and that.
    """
    device, values = settings.device, case.values
    tokens = 2048 if settings.rehearsal else int(values["tokens_per_pack"])
    packs = 2 if settings.rehearsal else max(1, RECIPE_TOKENS // tokens)
    is_direct = case.size in MEASURED_RECIPE and settings.as_on_gpu
    recompute, muon = values.get("recompute") == "1", values.get("optimizer") == "muon"
    train = TrainConfig(
        max_steps=ENDLESS,
        tokens_per_pack=tokens,
        tokens_per_step=tokens * packs,
        precision=precision_of(device),
        activation_checkpointing=recompute,
    )
    optim = OptimConfig(name="muon" if muon else "adamw", lr=LEARNING_RATE, warmup_steps=0)
    several = packs if is_direct else min(packs, FEW_PACKS)
    with TemporaryDirectory() as folder:
        model = model_of(case.size, settings, Path(folder))
        steady = REHEARSED if settings.rehearsal else STEADY
        grants = (
            Grant(steps=1 if settings.rehearsal else WARMUP_STEPS),
            steady,
            replace(steady, steps=-(-steady.steps // several), packs_per_step=several),
        )
        ceilings = [ceiling_of(device, seconds=steady.seconds / 20)]
        _, single, multiple = windows_of(Ours(run_config(model, settings.data, train, optim)), grants)
        ceilings.append(ceiling_of(device, seconds=steady.seconds / 20))
        arithmetic = Arithmetic(model, tokens, recompute)
        figures = {
            "one_pack_steps": figures_of([single], arithmetic, device, ceilings),
            "several_packs_steps": figures_of([multiple], arithmetic, device, ceilings),
        }
    pack, once = split_time(single, multiple, several)
    figures |= {"packs_per_step": several, "seconds_per_pack": pack, "seconds_per_step_beside_packs": once}
    residues = single.residues / single.steps
    rate = multiple.residues_per_second if is_direct else packs * residues / (packs * pack + once)
    # The share of time in a recipe's step that its packs take is the same for every rate.
    scale = rate / multiple.residues_per_second
    measured = figures["several_packs_steps"]
    figures["recipe"] = {
        "residues_per_second": rate,
        "is_computed": not is_direct,
        **{name: measured[name] * scale for name in ("model_mfu", "executed_mfu", "share_of_ceiling")},
    }
    return {**figures, "precision": train.precision, "verdict": verdict(case.size, rate, settings)}


def split_time(single: Window, multiple: Window, packs: int) -> tuple[float, float]:
    """Seconds of a pack, and of what a step does once, from steps of one pack and of several."""
    one, several = single.seconds / single.steps, multiple.seconds / multiple.steps
    pack = (several - one) / (packs - 1) if packs > 1 else one
    return pack, max(0.0, one - pack)


def verdict(size: str, rate: float, settings: Settings) -> str:
    """``passed`` or ``missed`` by the floor on an H100 or H200; elsewhere there is none."""
    if settings.device.type != "cuda" or not re.search(
        r"H[12]00", torch.cuda.get_device_name(settings.device)
    ):
        return "measured"
    return "passed" if rate >= FLOORS[size] else "missed"


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per shape."""
    found = []
    for line in lines:
        figures, recipe = line["figures"], line["figures"]["recipe"]
        one = figures["one_pack_steps"]
        found.append(
            {
                "model": line["size"],
                "shape": line["shape"].replace(",", ", ").replace("_", " "),
                "residues/s, recipe's steps": f"{recipe['residues_per_second']:,.0f}"
                + (" (computed)" if recipe["is_computed"] else ""),
                "one-pack steps": f"{one['residues_per_second']:,.0f}",
                "MFU, model": f"{recipe['model_mfu']:.1%}",
                "MFU, executed": f"{recipe['executed_mfu']:.1%}",
                "of the measured ceiling": f"{recipe['share_of_ceiling']:.0%}",
                "fill": f"{one['fill']:.3f}",
                "peak GB": f"{one['peak_gb']:.1f}",
                "mean length": f"{one['mean_length']:.0f}",
                "floor, goal": _target(line),
            }
        )
    return found


def _target(line: Line) -> str:
    if line["verdict"] not in ("passed", "missed"):
        return "-"
    rate = line["figures"]["recipe"]["residues_per_second"]
    reached = "goal reached" if rate >= GOALS[line["size"]] else line["verdict"]
    return f"{FLOORS[line['size']]:,.0f}, {GOALS[line['size']]:,.0f}: {reached}"
