"""A sweep of all-reduces: what it is compared with, and what is left of it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from seqlm.launch.network import bandwidth
from seqlm.launch.network.all_reduce import Point, Sweep
from seqlm.launch.network.bandwidth import SMALLEST_BYTES, sizes
from seqlm.launch.network.expectation import (
    Expectation,
    Published,
    judge,
    read_expectation,
    wire_limit_gb_s,
)
from seqlm.training.command_line import one_line_errors
from tests.workloads.training.forked_processes import forked

FIGURE = Published(465.87, 4 << 30, 2, "github.com/someone")
P5 = Expectation("ml.p5.48xlarge", 8, 400.0, True, FIGURE, None)
EFA = "Libfabric, efa, 32 cards"


def point(bus_gb_s: float, size_bytes: int = 4 << 30, num_processes: int = 16) -> Point:
    return Point(
        size_bytes,
        size_bytes * 2 * (num_processes - 1) / num_processes / bus_gb_s / 1e9,
        20,
        num_processes,
    )


def sweep(bus_gb_s: float, *, num_nodes: int = 2, network: str = EFA) -> Sweep:
    n = 8 * num_nodes
    return Sweep(num_nodes, n, network, (point(0.02, 1 << 10, n), point(bus_gb_s, 4 << 30, n)))


@pytest.mark.parametrize(
    ("found", "expected", "state", "said"),
    [
        (
            sweep(466.0),
            P5,
            "as expected",
            "466 GB/s at 4 GiB, 100% of the published 465.87 GB/s (github.com/",
        ),
        (sweep(373.0), P5, "as expected", "80% of the published"),
        (sweep(372.0), P5, "low", "80% is enough"),
        # TCP may be fast enough for a figure of one's own, and is wrong all the same.
        (
            sweep(5.0, network="Socket"),
            replace(P5, at_least_gb_s=1.0),
            "low",
            "over TCP: ml.p5.48xlarge has EFA",
        ),
        (
            sweep(5.0, network="Socket"),
            replace(P5, has_efa=False, published=None),
            "not judged",
            "5 GB/s",
        ),
        (sweep(350.0, num_nodes=4), P5, "not judged", "68% of the wire's limit of 516.7 GB/s"),
        (
            sweep(350.0, num_nodes=4),
            replace(P5, at_least_gb_s=300.0),
            "as expected",
            "at_least is 300 GB/s",
        ),
        (
            sweep(250.0, num_nodes=4),
            replace(P5, at_least_gb_s=300.0),
            "low",
            "250 GB/s at 4 GiB; at_least",
        ),
        # The published size did not fit.
        (
            Sweep(2, 16, EFA, (point(300.0, 1 << 30),)),
            P5,
            "not judged",
            "40% of the wire's limit of 750",
        ),
        (
            Sweep(1, 8, EFA, (point(450.0, num_processes=8),)),
            P5,
            "not judged",
            "450 GB/s at 4 GiB; no measure",
        ),
    ],
)
def test_what_a_sweep_is_compared_with(
    found: Sweep, expected: Expectation, state: str, said: str
) -> None:
    verdict = judge(expected, found)
    assert verdict.state == state and said in verdict.text


@pytest.mark.parametrize(
    ("num_nodes", "num_processes", "limit"),
    [(1, 8, None), (2, 2, 50.0), (2, 16, 93.75), (1000, 8000, 50.0438)],
)
def test_the_wires_limit(num_nodes: int, num_processes: int, limit: float | None) -> None:
    """Two nodes of one GPU each send half of what they reduce to the other: the bus is the wire."""
    assert wire_limit_gb_s(50.0, num_nodes, num_processes) == (
        limit and pytest.approx(limit, rel=1e-4)
    )


def test_sizes_double_and_hold_those_of_published_figures() -> None:
    found = list(sizes(4 << 30))
    assert found[0] == SMALLEST_BYTES and found[-1] == FIGURE.size_bytes and len(found) == 23


def test_what_is_expected_comes_through_a_file(tmp_path: Path) -> None:
    for expected in (P5, replace(P5, published=None, at_least_gb_s=3.0)):
        (tmp_path / "config.yaml").write_text(expected.text())
        assert read_expectation(tmp_path / "config.yaml") == expected


def test_the_page_shows_measured_and_expected() -> None:
    found = sweep(466.0)
    page = bandwidth.report(found, P5, judge(P5, found))
    for text in (
        "ml.p5.48xlarge, 2 node(s), 16 processes",
        "466 GB/s",
        "published, 2 nodes",
        "limit of the wire",
    ):
        assert text in page
    assert "<svg" in page and "limit of the wire" not in bandwidth.report(
        Sweep(1, 8, "", found.points), P5, None
    )


def measured(*arguments: str) -> None:
    sys.argv[1:] = arguments
    with one_line_errors():
        sys.exit(bandwidth.main())


@pytest.mark.long
def test_a_sweep_of_two_processes(tmp_path: Path) -> None:
    expected = Expectation("ml.m5.large", 0, 1.0, False, None, at_least_gb_s=1e6)
    (tmp_path / "config.yaml").write_text(expected.text())
    command = (f"--config={tmp_path}/config.yaml", f"--to={tmp_path}/run")
    message = {"ESM2_ERROR_FILE": str(tmp_path / "message")}
    with forked(2, measured, *command, log=tmp_path / "log", **message) as started:
        assert any(started.ends(180)), "slower than requested"
    found = json.loads((tmp_path / "run/bandwidth.json").read_text())
    assert found["network"] == "gloo" and len(found["points"]) >= 10
    assert all(p["bus_gb_s"] == pytest.approx(p["algorithm_gb_s"]) for p in found["points"])
    assert "16 MiB" in started.output or found["points"][-1]["seconds"] > 5
    assert "<svg" in (tmp_path / "run/report.html").read_text()
    assert found["verdict"]["state"] == "low"
    assert "at_least is 1e+06 GB/s" in (tmp_path / "message").read_text()
