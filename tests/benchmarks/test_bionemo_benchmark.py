"""The stage of BioNeMo around entry points that stand in for BioNeMo's; what it compares with."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.case import Settings, prepare_unless_there
from benchmarks.contestant import COUNTS
from benchmarks.stages import bionemo
from tests.workloads.bionemo.stand_in_bionemo import make_packages
from workloads.training.command_line import RunError


def test_it_needs_bionemo(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="make image FRAMEWORK=bionemo builds"):
        bionemo.cases(Settings(tmp_path, torch.device("cpu"), rehearsal=False))


@pytest.mark.long
def test_steps_are_measured_and_ours_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(make_packages(tmp_path / "packages"))
    data, ours = tmp_path / "data", tmp_path / "ours.jsonl"
    prepare_unless_there(data)
    speed = {"stage": "speed", "size": "8M", "device": "cpu", "data": "x/data"}
    lines = [
        {**speed, "figures": {"one_pack_steps": {"residues_per_second": rate}}} for rate in (5000.0, 4000.0)
    ]
    ours.write_text("\n".join(json.dumps(line) for line in lines))
    settings = Settings(data, torch.device("cpu"), rehearsal=True, lines=(ours,))
    case = bionemo.cases(settings)[0]
    assert case.id == "bionemo/8M/BioNeMo/micro_batch=8"
    before = signal.getsignal(signal.SIGTERM)
    found = bionemo.run(case, settings)
    signal.signal(signal.SIGTERM, before)  # BioNeMo has handled it
    assert found["windows"] == 2 and found["slots_per_window"] == 4 * 1024
    assert found["ours_over_it"] == pytest.approx(5000 / found["residues_per_second"])
    (row,) = bionemo.rows([{"size": case.size, "shape": case.shape, "figures": found}])
    assert row["shape"] == "micro batch=8" and row["ours over it"].endswith("x")
    words = bionemo.arm_of("8M", data, 4, tmp_path).words()
    assert {"--log-every-n-steps=1000000", "--limit-val-batches=1"} <= {*words}, "it does nothing else"
    for other in ({"size": "650M"}, {"device": "NVIDIA H100"}, {"data": "y/others"}, {"figures": {}}):
        ours.write_text(json.dumps({**lines[0], **other}))
        assert bionemo.ours_beside(case, settings) == []
    for name in [
        name for name in sys.modules if name.startswith(("bionemo", "stand_in_bionemo", "lightning"))
    ]:
        del sys.modules[name]


def test_long_proteins_count_as_far_as_they_are_read() -> None:
    counts = dict(zip(COUNTS, bionemo.step_counts(np.array([10, 200]), 8, 102), strict=True))
    assert counts == {
        "proteins": 8,
        "residues": 55 * 8,
        "attended_pairs": (144 + 10404) / 2 * 8,
        "slots": 816,
    }
