"""Opponents whose layers are compiled in place: no graph is compiled in a measured window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.case import Settings
from benchmarks.contestant import Grant, windows_of
from benchmarks.ours import model_of
from benchmarks.trainers import Trainers
from tests.workloads.training.forked_processes import forked

WARMUP = Grant(steps=3)
MEASURED = Grant(steps=4)


def train(name: str, batch: int, data: Path, folder: Path) -> None:
    """Train in a process of its own, because the rehearsal changes torch's operators and compiler."""
    from tests.gpu import rehearsal

    rehearsal.begin()
    torch.set_num_threads(1)
    settings = Settings(data, torch.device("cpu"), rehearsal=True)
    contestant = Trainers(
        name=name,
        model=model_of("8M", settings, folder),
        rows=folder / "rows",
        data=data,
        batch_size=batch,
        precision="bf16",
        compiled=True,
    )
    windows = windows_of(contestant, (WARMUP, MEASURED))
    (folder / "graphs.json").write_text(json.dumps([window.notes["graphs"] for window in windows]))


@pytest.mark.long
@pytest.mark.parametrize(("name", "batch"), [("guidance", 2), ("tuned", 4), ("packed", 2048)])
def test_no_graph_is_compiled_after_the_warm_up(
    name: str, batch: int, data: Path, tmp_path: Path
) -> None:
    with forked(1, train, name, batch, data, tmp_path, log=tmp_path / "log") as started:
        assert started.ends(500) == [0], started.output
    warm, measured = json.loads((tmp_path / "graphs.json").read_text())
    assert 0 < warm == measured
