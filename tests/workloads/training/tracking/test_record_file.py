"""Removal of the last lines of a run's record, as a resume does it."""

import json
from pathlib import Path

import pytest

from seqlm.training.tracking import record_file
from seqlm.training.tracking.record_file import drop_after


def _record(path: Path, lines: list[dict[str, object]]) -> bytes:
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    path.write_bytes(content)
    return content


def _trained(steps: range) -> list[dict[str, object]]:
    return [{"kind": "train", "step": step, "loss": 2.5, "note": "x" * 200} for step in steps]


@pytest.fixture
def parsed_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List of the lines that are parsed."""
    texts: list[str] = []
    parsed = record_file.parsed

    def counting(text: str) -> dict[str, object] | None:
        texts.append(text)
        return parsed(text)

    monkeypatch.setattr(record_file, "parsed", counting)
    return texts


@pytest.mark.parametrize("num_steps", [100, 10_000])
def test_a_resume_reads_only_the_lost_lines_however_long_the_record(
    num_steps: int, tmp_path: Path, parsed_texts: list[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    written = _record(path, _trained(range(1, num_steps + 1)))
    inode = path.stat().st_ino
    assert drop_after(path, num_steps - 7, is_last=False) == 7
    # Seven lost lines, the line of the step itself and the one before it.
    assert len(parsed_texts) == 9
    assert path.stat().st_ino == inode, "the record is not copied"
    left = path.read_bytes()
    assert written.startswith(left) and left.count(b"\n") == num_steps - 7


def test_a_record_without_lost_lines_keeps_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written = _record(path, _trained(range(1, 1_001)))
    assert drop_after(path, 1_000, is_last=False) == 0
    assert path.read_bytes() == written


def test_an_event_of_a_checkpoint_stays_although_later_steps_precede_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    saved = {"kind": "event", "step": 4, "event": "checkpoint"}
    _record(path, [*_trained(range(1, 8)), saved, *_trained(range(8, 10))])
    assert drop_after(path, 4, is_last=False) == 5
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 4]
    assert lines[-1] == saved


@pytest.mark.parametrize(
    ("step", "is_last", "left"),
    [
        (0, False, ["event"]),
        (2, False, ["eval", "event", "train", "eval", "event", "eval", "eval"]),
        (2, True, ["eval", "event", "train", "eval", "event"]),
    ],
)
def test_scores_that_are_made_again_are_dropped(
    step: int, is_last: bool, left: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    start: list[dict[str, object]] = [
        {"kind": "eval", "step": 0, "split": "general"},
        {"kind": "event", "step": 0, "event": "resumed"},
    ]
    end: list[dict[str, object]] = [
        {"kind": "train", "step": 2},
        {"kind": "eval", "step": 2, "split": "general"},
        {"kind": "event", "step": 2, "event": "checkpoint"},
        {"kind": "eval", "step": 2, "split": "validation"},
        {"kind": "eval", "step": 2, "split": "test"},
    ]
    _record(path, [*start, *end])
    drop_after(path, step, is_last=is_last)
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == left


def test_a_last_line_without_its_line_break_is_kept_if_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written = _record(path, _trained(range(1, 4)))
    path.write_bytes(written[:-1])
    assert drop_after(path, 3, is_last=False) == 0
    assert path.read_bytes() == written
    path.write_bytes(written[:-9])
    assert drop_after(path, 3, is_last=False) == 0
    assert path.read_bytes() == b"".join(written.splitlines(keepends=True)[:2])


def test_a_damaged_lost_line_is_named_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written = _record(path, _trained(range(1, 400)))
    damaged = written + b"xx\n" + written
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"metrics\.jsonl:400: got 'xx'; expected a JSON object"):
        drop_after(path, 0, is_last=False)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("block_bytes", [1, 7, 256])
def test_lines_may_be_longer_than_a_block(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "metrics.jsonl"
    written = _record(path, _trained(range(1, 6)))
    assert drop_after(path, 2, is_last=False) == 3
    assert path.read_bytes() == b"".join(written.splitlines(keepends=True)[:2])


def test_an_empty_record_stays_empty(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    assert drop_after(path, 0, is_last=False) == 0
    assert path.read_bytes() == b""


def test_warnings_of_lost_steps_stay(tmp_path: Path) -> None:
    """The report names a sick GPU although its step is repeated, however often the run resumes."""
    path = tmp_path / "metrics.jsonl"
    warning = {"kind": "event", "step": 8, "event": "warning: step 8: loss nan"}
    _record(path, [*_trained(range(1, 8)), warning])
    assert drop_after(path, 5, is_last=False) == 2
    resumed = {"kind": "event", "step": 5, "event": "resumed"}
    with path.open("a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in [resumed, *_trained(range(6, 10))])
    assert drop_after(path, 4, is_last=False) == 5
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 8]
    assert lines[-1] == warning
