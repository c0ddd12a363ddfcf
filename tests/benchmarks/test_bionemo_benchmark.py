"""make bench FRAMEWORK=bionemo around entry points that stand in for BioNeMo's; what it compares with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bionemo
from benchmarks.contestant import COUNTS
from tests.workloads.bionemo.stand_in_bionemo import make_packages


def test_it_needs_bionemo(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="make image FRAMEWORK=bionemo builds"):
        bionemo.main([f"--data={tmp_path}"])


@pytest.mark.long
def test_steps_are_measured_and_ours_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(make_packages(tmp_path / "packages"))
    data = tmp_path / "data"
    ours = tmp_path / "ours.jsonl"
    out = tmp_path / "out.json"
    speed = {"stage": "speed", "size": "8M", "device": "cpu", "data": "x/data"}
    lines = [
        {**speed, "figures": {"one_pack_steps": {"residues_per_second": rate}}}
        for rate in (5000.0, 4000.0)
    ]
    ours.write_text("\n".join(json.dumps(line) for line in lines))
    given = [
        "--quick",
        "--micro-batch",
        "4",
        "--rounds=2",
        f"--data={data}",
        f"--beside={ours}",
        f"--json={out}",
    ]
    bionemo.main(given)
    found = json.loads(out.read_text())
    windows = found["windows"]["4"]
    assert [window["proteins"] for window in windows] == [4, 4]
    assert windows[0]["slots"] == 4 * 1024 and 0 < windows[0]["residues"] < 4 * 1022
    assert found["beside"]["ratio"] == pytest.approx(5000 / found["residues_per_second"])
    said = capsys.readouterr().out
    assert "micro batch   4:" in said and "ours" in said
    words = bionemo.arm_of("8M", data, 4, tmp_path).words()
    assert {"--log-every-n-steps=1000000", "--limit-val-batches=1"} <= {*words}, (
        "it does nothing else"
    )
    for other in (
        {"size": "650M"},
        {"device": "NVIDIA H100"},
        {"data": "y/others"},
        {"figures": {}},
    ):
        with pytest.raises(
            ValueError, match=r"--beside: has no speed of 8M .* make gpu ARGS=.*--only /8M/"
        ):
            bionemo.beside(found, [{**lines[0], **other}])
    for name in [
        name
        for name in sys.modules
        if name.startswith(("bionemo", "stand_in_bionemo", "lightning"))
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
