"""The GPU tests run on the CPU with small shapes, by the stages of the acceptance run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.case import Settings
from benchmarks.stages.parity import outcomes
from tests.workloads.training.forked_processes import forked

pytestmark = pytest.mark.long


def rehearse(stage: str, contestant: str, folder: Path) -> None:
    module = importlib.import_module(f"benchmarks.stages.{stage}")
    settings = Settings(folder, torch.device("cpu"), rehearsal=True)
    case = next(case for case in module.cases(settings) if case.contestant == contestant)
    (folder / "figures.json").write_text(json.dumps(module.run(case, settings)))


def rehearsed(stage: str, contestant: str, folder: Path) -> dict[str, Any]:
    """A case in a process of its own, since rehearsals change torch's operators."""
    with forked(1, rehearse, stage, contestant, folder, log=folder / "log") as started:
        assert started.ends(500) == [0], started.output
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text())
    assert figures["verdict"] == "passed", started.output
    return figures["tests"]


@pytest.mark.parametrize(
    ("stage", "contestant", "at_least"),
    [
        ("parity", "attention", 8),
        ("parity", "model", 11),
        ("parity", "kernels", 13),
        ("hygiene", "hygiene", 3),
    ],
)
def test_every_test_passes_and_records_its_errors(
    stage: str, contestant: str, at_least: int, tmp_path: Path
) -> None:
    tests = rehearsed(stage, contestant, tmp_path)
    assert {test["outcome"] for test in tests.values()} == {"passed"}
    assert len(tests) >= at_least
    recorded = [name for test in tests.values() for name in test if name.endswith(", tolerance")]
    assert len(recorded) >= at_least - 1
    for test in tests.values():
        for name in test:
            if name.endswith(", tolerance"):
                assert 0 <= test[name.removesuffix(", tolerance")] <= test[name]
    if contestant == "attention":
        assert tests["test_varlen_equals_dense_attention[24]"]["output"] > 1e-4, "bf16 rounds"


def test_launches_alone_are_not_counted_on_a_cpu(tmp_path: Path) -> None:
    tests = rehearsed("hygiene", "steps", tmp_path)
    skipped = [name for name, test in tests.items() if test["outcome"] == "skipped"]
    assert skipped == ["test_few_launches_mask_a_pack"]
    assert {test["outcome"] for test in tests.values()} == {"passed", "skipped"}


def test_peaks_need_a_gpu(tmp_path: Path) -> None:
    tests = rehearsed("hygiene", "memory", tmp_path)
    assert {test["outcome"] for test in tests.values()} == {"skipped"}
    assert all("CUDA allocator" in test["message"] for test in tests.values())


def test_failures_and_the_worst_of_several_errors_are_reported(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="good" time="0.5"><properties>'
        '<property name="logits" value="0.001"/><property name="logits" value="3e-2"/>'
        '<property name="logits" value="0.002"/><property name="where" value="a.py:1"/>'
        "</properties></testcase>"
        '<testcase name="bad" time="1"><failure message="logits: got nan">trace</failure></testcase>'
        '<testcase name="broken" time="0"><error message="no driver">trace</error></testcase>'
        "</testsuite></testsuites>"
    )
    assert outcomes(report) == {
        "good": {"outcome": "passed", "seconds": 0.5, "logits": 0.03, "where": "a.py:1"},
        "bad": {"outcome": "failed", "seconds": 1.0, "message": "logits: got nan"},
        "broken": {"outcome": "error", "seconds": 0.0, "message": "no driver"},
    }
