"""Simulated campaigns on a small landscape."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import campaign
from benchmarks.campaign import ARMS, Landscape, landscape_of, simulated

LETTERS = "ACDEFGHI"


@pytest.fixture
def landscape(monkeypatch: pytest.MonkeyPatch) -> Landscape:
    """512 variants of three positions, whose values rise with the letters."""
    monkeypatch.setattr(campaign, "PER_ROUND", 10)
    variants = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)]
    values = [float(np.prod([LETTERS.index(letter) + 1 for letter in one])) for one in variants]
    return landscape_of(variants, values)


def options(arm: str) -> campaign.Arm:
    """Return an arm whose batches have the size of this landscape's rounds."""
    found = ARMS[arm]
    if found in (campaign.greedy_walks, campaign.random_choice):
        return found
    chosen = campaign.replace(found.args[0], number=10)  # type: ignore[attr-defined]
    return campaign.partial(campaign.proposed, chosen)


@pytest.mark.long
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_measures_as_many_variants(arm: str, landscape: Landscape) -> None:
    rounds = options(arm)(landscape, 3)
    rows = [row for one in rounds for row in one]
    assert len(rounds) == campaign.ROUNDS and len(rows) == len(set(rows)) == 40
    assert options(arm)(landscape, 3) == rounds


@pytest.mark.long
def test_proposals_are_better_than_random_choice(landscape: Landscape) -> None:
    best = {
        arm: np.mean([simulated(landscape, options(arm), seed).best[-1] for seed in range(4)])
        for arm in ("propose, one-hot", "random choice")
    }
    assert best["propose, one-hot"] > best["random choice"]


def test_a_landscape_is_read_and_reported(tmp_path: Path) -> None:
    lines = ["variant,fitness"]
    for number, letters in enumerate(itertools.product("ACDEFGHIKL", repeat=3)):
        lines.append(f"{''.join(letters)},{number % 97}")
    (tmp_path / "landscape.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "found.json"
    campaign.main(
        [
            *("--landscape", str(tmp_path / "landscape.csv"), "--out", str(out)),
            *("--seeds", "3", "--arms", "random choice"),
        ]
    )
    found = json.loads(out.read_text())
    arm = found["arms"]["random choice"]
    assert found["variants"] == 1000 and arm["seeds"] == 3
    assert arm["best_of_maximum"] == arm["best_of_maximum_by_round"][-1] <= 1
