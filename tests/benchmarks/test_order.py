"""Order of the cases, those that fit a time, and what runs side by side."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks.acceptance import STAGES
from benchmarks.case import Case, Settings
from benchmarks.order import (
    ORDER,
    Job,
    Room,
    expected_seconds,
    fitting,
    grouped,
    in_order,
    side_by_side_seconds,
)

H200 = Room(gigabytes=150, cores=16)
H100 = Room(gigabytes=85, cores=16)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Cases of ESM-2 on a GPU."""
    settings = Settings(Path("unused"), torch.device("cuda"), rehearsal=False)
    found: list[Case] = []
    for name in STAGES.split(","):
        found += import_module(f"benchmarks.stages.{name}").cases(settings)
    return [case for case in found if case.size not in ("300M", "600M")]


@pytest.mark.parametrize("room", [H200, H100])
def test_the_most_important_cases_fit_nine_minutes(room: Room, cases: list[Case]) -> None:
    chosen = fitting(in_order(cases), 540, room)
    names = [case.id for case in chosen]
    for expected in (
        "parity/-/attention",
        "parity/-/model",
        "parity/-/kernels",
        "hygiene/8M/hygiene",
        "hygiene/8M/steps",
        "hygiene/150M/memory",
        "speed/8M/ours/tokens_per_pack=65536",
        "speed/35M/ours/tokens_per_pack=65536",
        "speed/150M/ours/tokens_per_pack=32768",
        "speed/650M/ours/tokens_per_pack=16384",
        "versus/8M/all/tuned_batch=256",
    ):
        assert any(name.startswith(expected) for name in names), expected
    assert expected_seconds(chosen, room) <= 540


def test_every_priority_has_a_case_and_a_reason(cases: list[Case]) -> None:
    for priority in ORDER:
        assert any(priority.includes(case) for case in cases), priority
        assert priority.reason.endswith(".")


def test_profilers_come_after_all_cases_of_their_process(cases: list[Case]) -> None:
    groups = {group.process: group.cases for group in grouped(in_order(cases))}
    shared = groups["ours 8M"]
    assert {case.stage for case in shared} == {"speed", "profile"}
    assert [case.slows_process for case in shared] == sorted(case.slows_process for case in shared)


def test_jobs_share_memory_and_cores() -> None:
    jobs = [Job(10, 60), Job(20, 60), Job(5, 20)]
    assert side_by_side_seconds(jobs, Room(200, 16)) == 20
    # The second waits for the first; the third fits beside it.
    assert side_by_side_seconds(jobs, Room(100, 16)) == 30
    assert side_by_side_seconds(jobs, Room(math.inf, 1)) == 35
    # A job that never fits starts alone.
    assert side_by_side_seconds([Job(7, 500)], Room(100, 16)) == 7


def test_a_long_case_makes_way_for_later_ones() -> None:
    case = Case("a", "-", "b", "c", seconds=50)
    long = replace(case, contestant="long", seconds=200, warm_seconds=30)
    test = replace(case, contestant="test", is_timed=False)
    found = fitting([case, long, test, replace(case, contestant="d")], 160, H200)
    assert [one.contestant for one in found] == ["b", "test", "d"]
    assert expected_seconds(found, H200) == 150
    assert fitting([long], math.inf, H200) == [long]
