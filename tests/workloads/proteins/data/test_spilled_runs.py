"""The list of spilled runs, which processes read as a file: data, and nothing that can run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from seqlm.proteins.data.shards import load_runs, save_runs
from seqlm.training.data.spill import Run


def test_the_list_of_runs_is_json(tmp_path: Path) -> None:
    runs = [Run("/a/b.spill", 3, 0, (5, 7)), Run("/a/c.spill", 1, 99, ())]
    file = tmp_path / "records.runs"
    save_runs(runs, file)
    assert load_runs(file) == runs
    assert len(json.loads(file.read_text())) == 2


def test_a_list_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    """A preparation that finds repeated ids begins again, with files of the same names."""
    file = tmp_path / "ids.runs"
    for rows in (3, 4):
        runs = [Run("/a/b.spill", rows, 0, (5, 7))]
        save_runs(runs, file)
        assert load_runs(file) == runs


def test_a_pickle_in_its_place_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "planted.runs"
    file.write_bytes(pickle.dumps([]))
    with pytest.raises(ValueError):
        load_runs(file)
