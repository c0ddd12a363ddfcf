"""Training on torch_xla's CPU device: the code that trains on Trainium, on a device that is here.

``make test-xla`` runs it, in an environment with torch_xla and the torch that it needs.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seqlm.training import device_runtime
from seqlm.training.device_runtime import XlaRuntime
from seqlm.training.processes import Processes, processes
from seqlm.training.trainer import StepResult, Trainer
from tests.workloads.training.training_runs import (
    NUM_STEPS,
    PACKS_PER_STEP,
    largest_difference,
    losses,
    start_training,
    train_here,
    write_run_file,
)

torch_xla = pytest.importorskip(
    "torch_xla", reason="torch_xla is not installed here: make test-xla"
)
metrics = pytest.importorskip("torch_xla.debug.metrics")
xla_model = pytest.importorskip("torch_xla.core.xla_model")

TOLERANCE = 1e-5
"""Largest difference of a step's fp32 loss between devices."""
READ_BY_THE_HOST = {"aten::_local_scalar_dense"}


OF_BLOCKS = ("train.tokens_per_pack=512", f"train.tokens_per_step={PACKS_PER_STEP * 512}")
"""Packs of four blocks for attention; smaller ones are one."""


@dataclass(frozen=True)
class Counts:
    """Counts over all graphs so far."""

    compiled: int
    run: int

    @staticmethod
    def now() -> Counts:
        xla_model.wait_device_ops()
        compiled, run = (metrics.metric_data(name) for name in ("CompileTime", "ExecuteTime"))
        return Counts(compiled[0] if compiled else 0, run[0] if run else 0)


@dataclass(frozen=True)
class Trained:
    folder: Path
    counts: list[Counts]
    """After each step of the run ``xla``."""
    slow: list[bool]
    """Whether it had said by then that the step may be slow."""


@pytest.fixture(scope="module")
def train_first(
    prepared: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Train on ``cpu`` or ``xla`` in this process; return the run's folder."""
    folder = tmp_path_factory.mktemp("xla")
    run_file = write_run_file(folder, prepared, tiny_model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PJRT_DEVICE", "CPU")
        torch_xla.device()  # autograd asks for devices once, in the first backward pass of a process

    def on(device: str, name: str, *overrides: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("PJRT_DEVICE", raising=False)
            if device == "xla":
                patch.setenv("PJRT_DEVICE", "CPU")
            train_here(run_file, f"name={name}", *OF_BLOCKS, *overrides)
        return folder / "runs" / name

    return on


@pytest.fixture(scope="module")
def trained(train_first: Callable[..., Path]) -> Trained:
    """``cpu`` and ``xla``, the same run on either."""
    counts: list[Counts] = []
    slow: list[bool] = []
    said: list[bool] = []
    step = Trainer.step

    def counted(trainer: Trainer, *arguments: Any, **options: Any) -> StepResult:
        result = step(trainer, *arguments, **options)
        counts.append(Counts.now())
        slow.append(said[-1])
        return result

    train_first("cpu", "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", counted)
        patch.setattr("seqlm.training.trainer.beat", lambda _, slow: said.append(slow))
        metrics.clear_all()
        run_dir = train_first("xla", "xla")
    return Trained(run_dir.parent, counts, slow)


@pytest.fixture(scope="module")
def train(train_first: Callable[..., Path], trained: Trained) -> Callable[..., Path]:
    """Train after ``trained``, which counts the graphs of a process that has compiled none."""
    return train_first


def results(run_dir: Path) -> dict[str, Any]:
    return dict(json.loads((run_dir / "all_results.json").read_text()))


def test_losses_and_scores_are_those_of_the_cpu(trained: Trained) -> None:
    on_cpu = trained.folder / "cpu"
    on_xla = trained.folder / "xla"
    assert largest_difference(losses(on_cpu), losses(on_xla)) < TOLERANCE
    found = results(on_xla)
    expected = results(on_cpu)
    assert found["environment"]["device"] == "XLA:CPU" != expected["environment"]["device"]
    for name in ("eval_loss", "test_loss"):
        assert found[name] == pytest.approx(expected[name], abs=TOLERANCE)


def test_a_step_is_the_same_few_graphs(trained: Trained) -> None:
    """Zeros for the loss, a graph for each micro-batch, one that reduces and clips, one that updates.

    Before the first step sums are tried, gradients and the optimizer's state made.
    """
    counts = trained.counts
    assert [each.compiled for each in counts] == [6] * NUM_STEPS
    run = {after.run - before.run for before, after in itertools.pairwise(counts[1:])}
    assert run == {PACKS_PER_STEP + 3}


def test_steps_that_compile_may_be_slow(trained: Trained) -> None:
    """Otherwise an observer would think that they hang."""
    compiled = [0, *(each.compiled for each in trained.counts)]
    assert trained.slow == [after > before for before, after in itertools.pairwise(compiled)]


def test_nothing_falls_back_to_the_host(trained: Trained) -> None:
    assert {
        name for name in metrics.counter_names() if name.startswith("aten::")
    } <= READ_BY_THE_HOST


def test_all_sums_of_a_step_are_part_of_its_graphs(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums on the hosts would cost each step a message to every host."""
    devices: list[str] = []
    add_up = Processes.add_up
    step = Trainer.step

    def recorded(here: Processes, values: torch.Tensor) -> None:
        devices.append(values.device.type)
        add_up(here, values)

    def step_recorded(trainer: Trainer, *arguments: Any, **options: Any) -> StepResult:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Processes, "add_up", recorded)
            return step(trainer, *arguments, **options)

    monkeypatch.setattr(Trainer, "step", step_recorded)
    train("xla", "summed", "train.max_steps=4")
    assert set(devices) == {"xla"}


def test_a_resumed_run_is_exact(train: Callable[..., Path]) -> None:
    settings = ("optim.schedule=constant",)
    whole = train("xla", "whole", *settings)
    train("xla", "resumed", *settings, f"train.max_steps={NUM_STEPS - 3}")
    before = Counts.now()
    assert losses(train("xla", "resumed", *settings)) == losses(whole)
    # One follows from the restored progress, unless an earlier test has compiled it. A checkpoint needs none.
    assert Counts.now().compiled - before.compiled <= 1


@pytest.mark.parametrize("devices", [("cpu", "xla"), ("xla", "cpu")])
def test_a_run_resumes_on_another_device(
    train: Callable[..., Path], devices: Sequence[str]
) -> None:
    settings = ("optim.schedule=constant",)
    whole = train("cpu", "whole-cpu", *settings)
    name = "-".join(devices)
    train(devices[0], name, *settings, "train.max_steps=15")
    assert largest_difference(losses(whole), losses(train(devices[1], name, *settings))) < TOLERANCE


def test_bf16_and_recomputed_layers(train: Callable[..., Path], trained: Trained) -> None:
    half = losses(train("xla", "bf16", "train.precision=bf16"))
    assert largest_difference(half, losses(trained.folder / "xla")) < 2e-3
    assert half != losses(trained.folder / "xla")
    again = train("xla", "again", "train.precision=bf16", "train.activation_checkpointing=true")
    assert largest_difference(losses(again), half) < 1e-3


def test_gradients_are_summed_within_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a world size of two, the only process sums its own gradient and halves it."""
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setattr(torch_xla.runtime, "world_size", lambda: 2)
    parameter = nn.Parameter(torch.zeros(3, device=torch_xla.device()))
    parameter.grad = torch.tensor([0.0, 1.0, 4.0]).to(parameter.device)
    XlaRuntime(parameter.device).reduce_gradients([torch.optim.SGD([parameter], lr=1.0)])
    assert "all-reduce" in torch_xla._XLAC._get_xla_tensors_hlo([parameter.grad])
    assert parameter.grad.tolist() == [0.0, 0.5, 2.0]


def test_two_processes_give_the_same_losses(train: Callable[..., Path], trained: Trained) -> None:
    """Both write a checkpoint that one process can resume from, though only the first of them writes.

    With gloo in place of the sums within graphs, which XLA's CPU device leaves out.
    """
    settings = ("optim.schedule=constant",)
    whole = train("cpu", "whole-cpu", *settings)
    command = (
        "--config",
        str(trained.folder.parent / "run.yaml"),
        "name=both",
        *OF_BLOCKS,
        *settings,
    )
    module = "tests.workloads.training.xla_joined_by_gloo"
    done = start_training(
        *command, "train.max_steps=15", processes=2, program=[module], PJRT_DEVICE="CPU"
    )
    said, _ = done.communicate(timeout=300)
    assert done.returncode == 0, said
    (checkpoint,) = (trained.folder / "both" / "checkpoints").iterdir()
    assert json.loads((checkpoint / "checkpoint.json").read_text())["world_size"] == 2
    assert sum(path.stat().st_size for path in checkpoint.glob("__1_*")) == 0
    assert largest_difference(losses(whole), losses(train("xla", "both", *settings))) < TOLERANCE


def test_losses_without_functionalization(trained: Trained) -> None:
    """torch-neuronx switches it off. Then the parts that tensors are split into have other data."""
    command = ("--config", str(trained.folder.parent / "run.yaml"), "name=without", *OF_BLOCKS)
    done = start_training(
        *command, processes=1, PJRT_DEVICE="CPU", XLA_DISABLE_FUNCTIONALIZATION="1"
    )
    said, _ = done.communicate(timeout=300)
    assert done.returncode == 0, said
    difference = largest_difference(
        losses(trained.folder / "cpu"), losses(trained.folder / "without")
    )
    assert difference < TOLERANCE


def test_locks_go_before_anything_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    done: list[Path | str] = []
    device = torch_xla.device()
    monkeypatch.setattr(device_runtime, "drop_locks", done.append)
    monkeypatch.setattr(XlaRuntime, "summed_device", lambda self: done.append("summed") or device)
    with processes(compile_cache=tmp_path) as here:
        assert here.device == device
    assert done == [tmp_path, "summed"]


def test_processes_that_would_train_apart_are_refused(run_file: Path) -> None:
    done = start_training("--config", str(run_file), processes=2, PJRT_DEVICE="CPU")
    said, _ = done.communicate(timeout=240)
    assert done.returncode != 0
    assert (
        "PJRT_DEVICE: got CPU with 2 processes, of which XLA adds up 1: they would train apart"
        in said
    )
