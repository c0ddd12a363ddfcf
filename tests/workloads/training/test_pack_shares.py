"""Unequal shares in the packs of a step: the same packs, the same losses, and the same run after a pause."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.runs.run_file import load_config
from seqlm.training import trainer
from seqlm.training.config_rules import training_violations, xla_violations
from seqlm.training.packing import HostPack, PackShape, Position
from seqlm.training.records import RecordSplit
from seqlm.training.step.loader import Steps
from seqlm.training.step.pack_shares import (
    SPEEDS_FILE,
    even_shares,
    pack_numbers,
    shares_by_speed,
    shares_text,
)
from tests.workloads.training.forked_processes import forked, train_and_record_all
from tests.workloads.training.training_runs import (
    NUM_STEPS,
    PACKS_PER_STEP,
    events,
    largest_difference,
    losses,
    write_run_file,
)

TOLERANCE = 1e-5
KINDS = ("fast", "slow")
"""Devices of the two processes, as the runs see them."""
BY_SPEED = "train.pack_shares=by_speed"
SPEEDS = {"tokens_per_pack": 256, "seconds_per_pack": {"fast": 0.1, "slow": 0.3}}
THREE_TO_ONE = "packs of a step: 3 on fast, 1 on slow"


@pytest.mark.parametrize(
    ("packs", "seconds", "group_size", "shares"),
    [
        (4, (1.0, 3.0), 1, (3, 1)),
        (4, (1.0, 1.0), 1, (2, 2)),
        (9, (1.0, 2.0, 2.0), 1, (5, 2, 2)),
        # The slow one has a pack, although the others would be done with all of them before.
        (6, (1.0, 1.0, 100.0), 1, (3, 2, 1)),
        # Each round of a group takes two packs, and its slower process decides.
        (8, (1.0, 1.0, 1.0, 3.0), 2, (3, 3, 1, 1)),
        # Packs for one round alone are dealt as with equal shares.
        (3, (1.0, 5.0, 5.0), 1, (1, 1, 1)),
        (2, (1.0, 5.0, 5.0), 1, (1, 1, 1)),
    ],
)
def test_a_step_is_over_as_early_as_it_can(
    packs: int, seconds: tuple[float, ...], group_size: int, shares: tuple[int, ...]
) -> None:
    assert shares_by_speed(packs, seconds, group_size) == shares


@pytest.mark.parametrize("shares", [(3, 1), (2, 2), (1, 4, 2), (3, 3, 1, 1), (2, 2, 2)])
def test_each_pack_has_one_process(shares: tuple[int, ...]) -> None:
    numbers = [pack_numbers(shares, rank) for rank in range(len(shares))]
    assert sorted(sum(numbers, ())) == list(range(sum(shares)))
    if len(set(shares)) == 1:  # in turns, as all runs before
        assert numbers[1] == tuple(range(1, sum(shares), len(shares)))


def test_even_shares_are_rounded_up() -> None:
    assert even_shares(5, 2) == (3, 3)
    assert shares_text((3, 1, 3), ("H200", "H100", "H200")) == "3 on H200, 1 on H100"


def test_a_step_has_the_same_packs_with_any_shares(prepared: Path) -> None:
    split = RecordSplit(prepared, "train")
    stream = ProteinStream(split, PackShape.of(split, 256, 126), seed=5)

    def packs(shares: tuple[int, ...], step_number: int) -> dict[int, HostPack]:
        found: dict[int, Any] = {}
        for rank in range(len(shares)):
            steps = Steps(stream, Position(), 5, rank, len(shares), shares=shares)
            step = next(islice(steps, step_number, None))
            found |= dict(zip(step.numbers, step.packs, strict=True))
        return found

    for step_number in (0, 7):
        alone = packs((5,), step_number)
        for shares in ((4, 1), (1, 3, 1)):
            shared = packs(shares, step_number)
            assert shared.keys() == alone.keys() == set(range(5))
            for number, pack in alone.items():
                assert (shared[number].tokens == pack.tokens).all()


def test_settings_without_shares_are_refused(run_file: Path) -> None:
    def problems(*overrides: str) -> list[str]:
        config = load_config(run_file, ())
        changed = load_config(run_file, [BY_SPEED])
        assert list(training_violations(config)) == list(training_violations(changed)) == []
        with pytest.raises(ValueError) as caught:
            load_config(run_file, [BY_SPEED, *overrides])
        return str(caught.value).splitlines()[1:]

    (problem,) = problems("parallel.mode=fsdp")
    assert "got by_speed with parallel.mode=fsdp over all devices" in problem
    assert load_config(run_file, [BY_SPEED, "parallel.mode=fsdp", "parallel.shard_size=8"])
    (problem,) = xla_violations(load_config(run_file, [BY_SPEED]))
    assert problem.startswith("train.pack_shares: got by_speed; XLA computes passes later")


def train_on_two_kinds(run_file: Path, runs: list[str]) -> None:
    """Train in two processes that name their CPUs differently."""
    with mock.patch.object(trainer, "cpu_name", _kind):
        train_and_record_all(run_file, runs)


def _kind() -> str:
    return KINDS[int(os.environ["RANK"])]


@pytest.fixture(scope="module")
def runs(prepared: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shares")
    run_file = write_run_file(folder, prepared, tiny_model)
    constant = "optim.schedule=constant"
    train_and_record_all(run_file, [f"name=alone {constant}"])
    for name in ("unequal", "replicas", "paused"):
        run = folder / "runs" / name
        run.mkdir(parents=True)
        (run / SPEEDS_FILE).write_text(json.dumps(SPEEDS))
    in_turn = [
        f"name=even {constant}",
        f"name=unequal {constant} {BY_SPEED}",
        f"name=replicas {constant} {BY_SPEED} parallel.mode=fsdp parallel.shard_size=1",
        f"name=paused {constant} {BY_SPEED} train.max_steps={NUM_STEPS // 2}",
        f"name=paused {constant} {BY_SPEED}",
        f"name=measured {constant} {BY_SPEED}",
    ]
    log = folder / "two.log"
    with forked(2, train_on_two_kinds, run_file, in_turn, log=log) as started:
        assert started.ends(400) == [0, 0], started.output
    return folder / "runs"


@pytest.mark.long
@pytest.mark.parametrize("name", ["even", "unequal", "replicas", "measured"])
def test_losses_are_those_of_one_process(runs: Path, name: str) -> None:
    alone = losses(runs / "alone")
    assert alone[NUM_STEPS] < alone[1] - 0.3, "there must be something learnt to compare"
    assert largest_difference(alone, losses(runs / name)) < TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize("name", ["unequal", "replicas", "paused"])
def test_the_faster_process_has_three_of_four_packs(runs: Path, name: str) -> None:
    numbers = [
        len((runs / name / f"packs-{rank}.jsonl").read_text().splitlines()) for rank in range(2)
    ]
    # Evaluations, which both share equally, pass through the same function.
    of_evaluations = numbers[1] - NUM_STEPS
    assert numbers[0] - of_evaluations == 3 * NUM_STEPS and of_evaluations >= 0
    assert THREE_TO_ONE in events(runs / name)


@pytest.mark.long
def test_a_resumed_run_with_the_same_shares_is_equal_bit_for_bit(runs: Path) -> None:
    assert losses(runs / "paused") == losses(runs / "unequal")
    assert not [text for text in events(runs / "paused") if "bit for bit" in text]


@pytest.mark.long
def test_measured_times_are_kept_for_later_starts(runs: Path) -> None:
    found = json.loads((runs / "measured" / SPEEDS_FILE).read_text())
    assert found["tokens_per_pack"] == 256
    seconds = found["seconds_per_pack"]
    assert set(seconds) == set(KINDS) and all(value > 0 for value in seconds.values())
    shares = shares_by_speed(PACKS_PER_STEP, [seconds[kind] for kind in KINDS])
    assert f"packs of a step: {shares_text(shares, KINDS)}" in events(runs / "measured")
