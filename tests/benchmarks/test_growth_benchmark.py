"""Growth benchmark: exponents, extrapolations, lines, and the table and limits of docs/growth.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.case import Line, read_lines
from benchmarks.derived import growth
from benchmarks.growth import __main__ as command
from benchmarks.growth.arithmetic import Point, exponent, extrapolated
from benchmarks.growth.row import GPUS, NODES, PROTEINS, Costs, Row
from benchmarks.growth.rows import ROWS
from benchmarks.growth.table import STAGE, row_points, table_rows
from benchmarks.report import tables, write_tables
from tools.plan import tried

REPOSITORY = Path(__file__).parents[2]
GROWTH = REPOSITORY / "benchmarks" / "results" / "growth.jsonl"
PAGE = REPOSITORY / tried.PAGE
MOST_MINUTES = 40


def points(**costs: float) -> list[Point]:
    """Return points from names such as ``n100``."""
    return [Point(float(name[1:]), cost) for name, cost in costs.items()]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (points(n10=1, n100=10, n1000=100), 1.0),
        (points(n10=1, n100=10, n1000=1000), 2.0),
        (points(n10=3, n100=4, n1000=4), 0.0),
        (points(n10=0, n100=0, n1000=0), 0.0),
        (points(n10=0, n100=0, n1000=5), float("inf")),
        # The smallest size does not count, and points come in any order.
        (points(n1000=100, n10=90, n100=10), 1.0),
    ],
)
def test_the_exponent_is_the_slope_between_the_two_largest_sizes(
    measured: list[Point], expected: float
) -> None:
    assert exponent(measured) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("measured", "low", "high"),
    [
        # A constant part of 90: the line is exact.
        (points(n10=91, n100=100, n1000=190), 190 * 1.9**2, 10_090),
        # The square: the power law is exact.
        (points(n10=1, n100=100, n1000=10_000), 1_099_000, 1e8),
        (points(n10=5, n100=5, n1000=5), 5, 5),
        # Noise does not make a cost fall.
        (points(n10=5, n100=6, n1000=5), 5, 5),
    ],
)
def test_the_bounds_of_an_extrapolation_are_the_power_law_and_the_line(
    measured: list[Point], low: float, high: float
) -> None:
    found = extrapolated(measured, 100_000)
    assert found.low == pytest.approx(low)
    assert found.high == pytest.approx(high)


def linear(size: int, folder: Path) -> Costs:
    (folder / str(size)).touch()
    return {"CPU s": size / 100, "files": len(list(folder.iterdir()))}


def failing(size: int, folder: Path) -> Costs:
    raise ValueError("no such size")


LINEAR = Row("linear", "linear work", PROTEINS, (10, 100, 1_000), linear, "nothing", 1)
FAILING = Row("failing", "failing work", GPUS, (1, 2, 4), failing, "all", 1)


def test_each_size_is_a_line_and_a_failed_row_ends_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "ROWS", (FAILING, LINEAR))
    assert command.main(["--out", str(tmp_path), "--note", "in a test"]) == command.FAILED
    lines = read_lines([tmp_path / command.LINES_FILE])
    assert [(line["contestant"], line["size"]) for line in lines] == [
        ("linear", size) for size in ("10", "100", "1000")
    ]
    assert [line["figures"]["CPU s"] for line in lines] == [0.1, 1.0, 10.0]
    assert [line["figures"]["files"] for line in lines] == [1, 2, 3], "sizes share a folder"
    for line in lines:
        assert line["note"] == "in a test" and line["commit"] and line["versions"]["python"]
        assert line["command"].startswith("python -m benchmarks.growth --out ")
    captured = capsys.readouterr()
    assert "linear, CPU s: exponent 1.00; UniRef50 700,000; UniRef90 2,000,000" in captured.out
    assert "failed: failing" in captured.err


def test_an_unknown_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--only: got nothing; allowed are prepare, files"):
        command.main(["--out", str(tmp_path), "--only", "nothing"])


def test_rows_are_distinct_and_short() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert sum(row.expected_seconds for row in ROWS) < 60 * MOST_MINUTES
    for row in ROWS:
        assert list(row.sizes) == sorted(set(row.sizes)), row.name
    targets = {target.name for row in ROWS for target in row.scale.targets}
    asked = {"UniRef50", "UniRef90", "3 G proteins", "512 GPUs", "4,096 GPUs", "1,000 nodes"}
    assert asked <= targets


@pytest.mark.parametrize("name", ["runs", "addresses", "status"])
def test_counted_rows_do_not_grow_faster_than_their_size(name: str, tmp_path: Path) -> None:
    [row] = [row for row in ROWS if row.name == name]
    lines = [
        {"size": str(size), "figures": dict(row.measure(size, tmp_path))} for size in row.sizes
    ]
    for unit, found in row_points(lines).items():
        assert exponent(found) <= 1.01, unit


def line(row: Row, size: int, **changes: object) -> Line:
    return {
        "stage": "growth",
        "size": str(size),
        "contestant": row.name,
        "shape": row.scale.name,
        "figures": {"files": size},
        **changes,
    }


def test_a_row_of_the_table_needs_all_sizes() -> None:
    [nodes] = [row for row in ROWS if row.name == "addresses"]
    lines = [line(nodes, size) for size in nodes.sizes]
    [found] = table_rows(lines)
    assert found["cost (size) that was run"] == "10 (10) / 100 (100) / 1,000 (1,000)"
    assert found["exponent"] == "1.00" and found["by arithmetic"] == "the largest size was run"
    assert found["unknown"] == nodes.unknown and found["size"] == NODES.name
    assert table_rows(lines[:2]) == []


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return read_lines([GROWTH])


def test_committed_lines_have_the_sizes_of_the_rows(lines: list[Line]) -> None:
    for row in ROWS:
        sizes = [int(line["size"]) for line in lines if line["contestant"] == row.name]
        assert sorted(sizes) == list(row.sizes), row.name
    assert len(lines) == 3 * len(ROWS)
    assert "/tmp" not in GROWTH.read_text()


def test_the_page_has_the_tables_of_the_lines(lines: list[Line], tmp_path: Path) -> None:
    copy = tmp_path / "growth.md"
    copy.write_text(PAGE.read_text())
    write_tables([], [copy])
    assert copy.read_text() == PAGE.read_text(), 'run make bench ARGS="--report FILE"'
    assert tables("growth", lines).count("\n| ") >= len(ROWS)


def test_the_tried_proteins_are_those_of_the_lines(lines: list[Line]) -> None:
    for name in ("prepare", "resume"):
        sizes = [int(line["size"]) for line in lines if line["contestant"] == name]
        assert max(sizes) == tried.PROTEINS.most, name


def test_the_table_names_the_machine_of_each_kind_of_work() -> None:
    def line(name: str, size: int, device: str, cost: float) -> Line:
        versions = {"cpu_cores": 2, "torch": "2", "python": "3"}
        values = {"stage": STAGE, "size": str(size), "contestant": name, "device": device}
        return {
            **values,
            "versions": versions,
            "commit": "abcdef012",
            "note": "",
            "figures": {"s": cost},
        }

    [first, second, *_] = ROWS
    lines = [line(row.name, size, "old", 1.0) for row in (first, second) for size in row.sizes]
    lines += [line(second.name, size, "new", 2.0) for size in second.sizes]
    table = growth(lines)
    assert [row["work"] for row in table.rows] == [first.title, second.title]
    assert table.rows[1]["cost (size) that was run"].startswith("2 (")
    assert table.note.startswith("Measured on old (2 cores)")
    assert table.note.endswith(
        "Measured on new (2 cores), torch 2, Python 3; commit abcdef0. This machine is that of: "
        f"{second.title}."
    )
