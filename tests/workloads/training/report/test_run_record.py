"""A record of any length is read into a report of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seqlm.commands.kinds import report
from seqlm.training.report.run_record import (
    FIRST_EVALUATIONS,
    LAST_EVALUATIONS,
    MAX_EVENTS_SHOWN,
    MAX_TRAINING_LINES,
    RunRecord,
    Spread,
)
from tests.workloads.training.training_runs import figures_not_drawn

MAX_REPORT_BYTES = 100_000


@pytest.fixture
def undrawn() -> Iterator[None]:
    with figures_not_drawn():
        yield


def written(run_dir: Path, lines: list[dict[str, Any]]) -> Path:
    path = run_dir / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def evaluation(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "eval", "split": "validation", "step": step, "eval_loss": loss}


@pytest.mark.parametrize("count", [1, 10, 11, 999, 4096])
def test_items_of_a_stream_are_spread_evenly(count: int) -> None:
    spread = Spread[int](10)
    for number in range(count):
        spread.add(number)
    gaps = {after - before for before, after in zip(spread.kept, spread.kept[1:], strict=False)}
    assert spread.count == count
    assert spread.kept[0] == 0
    assert len(spread.kept) <= 10
    assert len(spread.kept) > 5 or count <= 5
    assert len(gaps) <= 1


def test_training_lines_of_a_long_run_are_spread_over_it(tmp_path: Path) -> None:
    steps = range(1, 2 * MAX_TRAINING_LINES + 2)
    path = written(tmp_path, [{"kind": "train", "step": step, "loss": 2.0} for step in steps])
    record = RunRecord(path)
    assert record.num_train == len(steps)
    assert MAX_TRAINING_LINES / 2 < len(record.train) <= MAX_TRAINING_LINES + 1
    assert record.train[0]["step"] == 1
    assert record.train[-1]["step"] == record.last_step == steps[-1]
    assert [line["step"] for line in record.recent] == list(steps[-len(record.recent) :])


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, [{"kind": "train", "step": 1}, evaluation(1, 2.0)])
    path.write_text(path.read_text() + '{"kind": "train", "st')
    record = RunRecord(path)
    assert record.num_evaluations == 1
    assert [line["step"] for line in record.train] == [1]


def test_many_evaluations_are_the_first_the_best_and_the_last(
    tmp_path: Path, undrawn: None
) -> None:
    losses = {step: 3 - step / 1000 for step in range(1, 1001)} | {500: 0.1234}
    written(tmp_path, [evaluation(step, loss) for step, loss in losses.items()])
    shown = RunRecord(tmp_path / "metrics.jsonl").shown_evaluations
    steps = [line["step"] for line in shown]
    first = list(range(1, FIRST_EVALUATIONS + 1))
    assert steps == [*first, 500, *range(1001 - LAST_EVALUATIONS, 1001)]
    text = report(tmp_path).read_text()
    assert "0.1234" in text
    assert f"{len(shown)} of 1,000: the first" in text
    assert "metrics.jsonl beside this report has all" in text
    assert len(text) < MAX_REPORT_BYTES


def test_few_evaluations_are_all_shown(tmp_path: Path, undrawn: None) -> None:
    written(tmp_path, [evaluation(step, 2.0) for step in range(1, 61)])
    text = report(tmp_path).read_text()
    assert text.count("<td>validation</td>") == 60
    assert "beside this report" not in text


def test_many_events_are_the_last_ones(tmp_path: Path, undrawn: None) -> None:
    events = [
        {"kind": "event", "step": step, "event": "checkpoint"} for step in range(1, 3 * 10**3 + 1)
    ]
    record = RunRecord(written(tmp_path, events))
    assert len(record.events) < 1000
    text = report(tmp_path).read_text()
    assert "Events (3,000)" in text
    assert f"The last {MAX_EVENTS_SHOWN} of 3,000." in text


def test_many_sources_are_counted_and_found_in_the_manifest(tmp_path: Path, undrawn: None) -> None:
    written(tmp_path, [{"kind": "train", "step": 1, "loss": 2.0}])
    data = tmp_path / "data"
    data.mkdir()
    sources = [{"name": f"part-{n}.fasta", "bytes": n, "sha256": "ab" * 32} for n in range(10_000)]
    split = {"records": 1, "clusters": 1, "residues": 9, "length_histogram": {}}
    (data / "manifest.json").write_text(
        json.dumps({"sources": sources, "splits": {"train": split}})
    )
    (tmp_path / "config.yaml").write_text(json.dumps({"data": {"path": str(data)}}))
    text = report(tmp_path).read_text()
    assert "part-0.fasta" in text
    assert "part-9999.fasta" not in text
    assert f"of 10,000 files. {data}/manifest.json has all." in text
    assert len(text) < MAX_REPORT_BYTES
