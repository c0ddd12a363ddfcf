"""A step that is not finite is repeated on each process alone, and the hardware is blamed if it should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from seqlm.runs.run_file import load_config
from seqlm.training.command_line import one_line_errors
from seqlm.training.health.faults import SickHardwareError
from seqlm.training.health.repetition import OwnFigures, deterministic, judge
from seqlm.training.health.unfit_nodes import unfit_nodes
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.sick_training import SICK_RUNS, Sickness, spoilt, train_sick_runs
from tests.workloads.training.training_runs import events, train_here, write_run_file

WELL = OwnFigures(was_finite=True, is_finite=True)
ONCE = OwnFigures(was_finite=False, is_finite=True)
AGAIN = OwnFigures(was_finite=False, is_finite=False)
UNREPEATED = OwnFigures(was_finite=False, is_finite=False, problem="OutOfMemoryError: no memory")


@pytest.mark.parametrize(
    ("figures", "is_hardware", "suspects"),
    [
        ([WELL, ONCE, WELL], True, (1,)),
        ([WELL, WELL, WELL], True, ()),
        ([ONCE, ONCE], True, ()),
        ([WELL], True, (0,)),
        ([WELL, WELL, AGAIN], True, (2,)),
        ([AGAIN, WELL, AGAIN], False, ()),
        ([AGAIN, AGAIN], False, ()),
        ([AGAIN], False, ()),
        ([WELL, UNREPEATED], False, ()),
    ],
)
def test_the_cause_follows_from_the_repetition(
    figures: list[OwnFigures], is_hardware: bool, suspects: tuple[int, ...]
) -> None:
    verdict = judge(figures)
    assert (verdict.is_hardware, verdict.suspects) == (is_hardware, suspects)


def test_kernels_are_deterministic_for_the_repetition_alone() -> None:
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.fixture(scope="module")
def sick_runs(
    prepared: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """Error of each run on both processes."""
    folder = tmp_path_factory.mktemp("sick")
    run_file = write_run_file(folder, prepared, tiny_model)
    with forked(2, train_sick_runs, run_file, folder, log=folder / "log") as started:
        assert started.ends(200) == [0, 0], started.output
    return {
        name: [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]
        for name in SICK_RUNS
    }


@pytest.mark.long
@pytest.mark.parametrize("name", SICK_RUNS)
def test_every_process_gets_the_same_error_and_keeps_its_weights(
    sick_runs: dict[str, list[dict[str, Any]]], name: str
) -> None:
    first, second = sick_runs[name]
    assert first == second
    assert first["is_unchanged"]
    assert first["text"].startswith("step 2: loss ")


@pytest.mark.long
@pytest.mark.parametrize("name", ["once", "once-kept", "one", "one-fsdp"])
def test_the_hardware_of_one_process_is_named(
    sick_runs: dict[str, list[dict[str, Any]]], name: str
) -> None:
    error = sick_runs[name][0]
    (rank,) = SICK_RUNS[name].ranks
    assert error["type"] == "SickHardwareError"
    assert f"the likely cause is hardware: process {rank} (node " in error["text"]


@pytest.mark.long
def test_a_fault_that_is_gone_is_the_hardwares_also_if_no_process_stands_out(
    sick_runs: dict[str, list[dict[str, Any]]],
) -> None:
    """FSDP shows no process's own gradient before it is reduced."""
    error = sick_runs["once-fsdp"][0]
    assert error["type"] == "SickHardwareError"
    assert "the likely cause is hardware: no process stands out" in error["text"]


@pytest.mark.long
def test_gradients_that_are_finite_nowhere_are_the_runs_fault(
    sick_runs: dict[str, list[dict[str, Any]]],
) -> None:
    error = sick_runs["all"][0]
    assert error["type"] == "NonFiniteLossError"
    assert "it is not finite on 2 of 2" in error["text"] and "Lower optim.lr" in error["text"]


@pytest.mark.parametrize("reports", [False, True])
def test_a_sick_node_is_logged_and_reported_if_it_may_be(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, reports: bool
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node-7")
    settings = (f"train.exclude_unfit_nodes={str(reports).lower()}", "train.max_steps=4")
    with (
        spoilt(Sickness((0,), again=False), rank=0),
        pytest.raises(SickHardwareError, match=r"hardware: process 0 \(node node-7\)"),
    ):
        train_here(run_file, *settings)
    run_dir = load_config(run_file, settings).run_dir
    assert any("likely cause is hardware" in event for event in events(run_dir))
    assert list(unfit_nodes(run_dir)) == (["node-7"] if reports else [])


def test_the_status_lets_a_scheduler_try_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise SickHardwareError("step 3: the GPU", {})
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: step 3: the GPU\n"
