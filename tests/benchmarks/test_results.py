"""Committed lines of acceptance runs, and their tables with prices, plans and expectations."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from benchmarks import derived, expected
from benchmarks.case import Line, case_id, read_lines
from benchmarks.derived import on_gpus, price_of, usd_per_billion
from benchmarks.report import tables
from benchmarks.stages import parity, speed
from seqlm.training.kernels import KERNELS
from tools.plan.rates import BANDWIDTHS, measurements

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
H200 = RESULTS / "h200.jsonl"
COMMITS = ("a69db570", "6baca149", "a5ada132")
BEFORE_WINDOWS = "a69db570"
"""Commit whose windows had no setting."""
PRIVATE = re.compile(r"(?<![\w/])/[a-z]+/|-fc-|hostname|@|\b\d{1,3}(\.\d{1,3}){3}\b")
"""Absolute paths, names of kernels of rented machines, host names and addresses."""


@pytest.fixture
def lines() -> list[Line]:
    return read_lines([H200])


def by_size(lines: list[Line]) -> dict[str, Line]:
    return {line["size"]: line for line in on_gpus(lines)}


def test_lines_of_the_gpu_are_whole_and_public(lines: list[Line]) -> None:
    texts = H200.read_text().splitlines()
    assert len(lines) == len(texts) == len({case_id(line) for line in lines})
    assert not PRIVATE.search(H200.read_text())
    for line in lines:
        assert line["commit"] in COMMITS and line["device"] == "NVIDIA H200"
        assert not line["rehearsal"] and "--out out " in line["command"]


def test_cases_with_a_line_had_no_failure(lines: list[Line]) -> None:
    """A line with the verdict ``missed`` counts as done, so a failed test must have no line."""
    for line in lines:
        assert line["verdict"] in ("passed", "measured")
        for test in line["figures"].get("tests", {}).values():
            assert test["outcome"] == "passed"


def test_windows_are_those_of_the_figures(lines: list[Line]) -> None:
    for line in lines:
        if line["commit"] == BEFORE_WINDOWS and line["stage"] != "speed":
            assert line["window"] is None
        if line["stage"] != "speed":
            continue
        recipe = line["figures"]["recipe"]
        if line["commit"] == BEFORE_WINDOWS:
            assert line["window"] == round(recipe["seconds"], 1)
        else:
            assert line["window"] <= recipe["seconds"]
        assert recipe["seconds"] < 6 or recipe["steps"] == 1
    assert by_size(lines)["150M"]["window"] == 7.8


def test_speed_table_has_goals_of_an_h200_only(lines: list[Line]) -> None:
    rows = speed.rows([line for line in lines if line["stage"] == "speed"])
    assert [row["model"] for row in rows] == ["8M", "35M", "150M", "650M", "650M", "3B"]
    assert rows[0]["goal"] == "3,600,000 (95% reached)" and rows[0]["window"] == "4.2 s, 7 steps"
    assert rows[0]["kernels"] == "attention, products, graph" and rows[1]["kernels"] == "none"
    assert (
        rows[2]["window"] == "7.8 s, 1 step"
        and "(computed)" in rows[3]["residues/s, recipe's steps"]
    )
    slow = copy.deepcopy(by_size(lines)["8M"])
    slow["figures"]["recipe"]["residues_per_second"] = 1e6
    assert speed.rows([slow])[0]["goal"].endswith("; below the floor of 1,400,000")
    slow["device"] = "NVIDIA H100 80GB HBM3"
    assert speed.rows([slow])[0]["goal"] == "-"


def test_table_of_gpu_tests_names_the_figure_closest_to_its_tolerance() -> None:
    tests = {
        "test_a": {"outcome": "passed", "output": 0.002, "output, tolerance": 0.01},
        "test_b": {"outcome": "failed", "logits": 0.03, "logits, tolerance": 0.02},
        "test_c": {"outcome": "passed", "waits": 0.0, "waits, tolerance": 0.0},
    }
    line = {"contestant": "model", "verdict": "missed", "figures": {"tests": tests}}
    (row,) = parity.rows([line])
    assert row["passed"] == "2 of 3" and row["verdict"] == "missed"
    assert row["closest to its tolerance"] == "logits: 3.0e-02, tolerance 2.0e-02"


def test_usd_follow_from_rate_and_price(lines: list[Line]) -> None:
    price = price_of("H200")
    assert price.instance_type == "ml.p5.48xlarge" and price.usd == pytest.approx(63.296 / 8)
    for line in on_gpus(lines):
        hours = 1e9 / line["figures"]["recipe"]["residues_per_second"] / 3600
        assert usd_per_billion(line) == pytest.approx(hours * price.usd)
    text = tables("usd", lines)
    assert "| ESM-2 8M | NVIDIA H200 | 0.64 |" in text
    assert "7.91 USD for an hour of a GPU of ml.p5.48xlarge (us-west-2, 2026-09-01)" in text
    assert "torch 2.11.0+cu130, commits a5ada13, a69db57" in text
    assert price_of("A100").usd == pytest.approx(25.91001756 / 8)
    with pytest.raises(KeyError, match="B200"):
        price_of("B200")


def test_derived_tables_leave_out_incomplete_and_other_lines(lines: list[Line]) -> None:
    line = by_size(lines)["650M"]
    others = []
    for changes in (
        {"verdict": "incomplete"},
        {"verdict": "out of memory"},
        {"shape": "tokens_per_pack=16384,optimizer=muon"},
        {"device": "AMD EPYC, Zen 4"},
    ):
        other = copy.deepcopy(line) | changes
        other["figures"]["recipe"]["residues_per_second"] *= 2
        others.append(other)
    assert on_gpus([*others, line]) == [line]
    assert tables("usd", others) == "Not measured yet.\n"
    faster = copy.deepcopy(line) | {"shape": "tokens_per_pack=32768"}
    faster["figures"]["recipe"]["residues_per_second"] *= 1.1
    assert on_gpus([line, faster]) == [faster]


def test_planned_memory_is_near_the_measured_peaks(lines: list[Line]) -> None:
    """docs/cost.md states the span."""
    shares = []
    for row in derived.planned_memory(lines).rows:
        shares.append(abs(float(row["planned over measured"].rstrip("%"))))
    assert len(shares) == 5
    span = re.search(r"within (\d+) % of the\n\[measured peaks\]", _text("docs/cost.md"))
    assert span and max(shares) <= int(span[1]) < max(shares) + 1


def _text(name: str) -> str:
    return (REPOSITORY / name).read_text()


@pytest.mark.parametrize(
    ("name", "size"), [("esm2_150m", "150M"), ("esm2_650m", "650M"), ("esm2_3b", "3B")]
)
def test_run_files_state_the_measured_memory(name: str, size: str, lines: list[Line]) -> None:
    line = by_size(lines)[size]
    stated = re.findall(r"([\d.]+) GB ", _text(f"workloads/seqlm/configs/{name}.yaml"))
    assert f"{line['figures']['recipe']['peak_gb']:.1f}" in stated


def test_expected_gains_are_of_known_kernels_in_their_order() -> None:
    names = list(dict.fromkeys(gain.name for gain in expected.GAINS))
    assert names == [expected.MASKING, *KERNELS]
    steps = dict.fromkeys((gain.step, gain.name) for gain in expected.GAINS)
    assert list(steps) == list(enumerate(names))
    assert len(expected.EXPECTED) == len(expected.GAINS)
    assert all(gain.ms_per_pack > 0 for gain in expected.GAINS)
    attention = expected.EXPECTED["attention", "8M"]
    assert attention.ms_per_pack == pytest.approx(8.04)
    assert expected.EXPECTED["attention", "650M"].ms_per_pack == pytest.approx(9.9)
    with pytest.raises(KeyError):
        expected.EXPECTED["graph", "650M"]
    text = tables("expected", [])
    assert "| 1. attention | 8M |" in text and expected.CONDITIONS in text


def test_the_plan_reads_the_same_lines(lines: list[Line]) -> None:
    found = {one.size: one for one in measurements() if one.gpu == "H200"}
    for size, line in by_size(lines).items():
        assert found[size].share == line["figures"]["recipe"]["model_mfu"]
    assert {one.gpu for one in measurements()} <= set(BANDWIDTHS)
