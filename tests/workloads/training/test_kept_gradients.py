"""Gradients that keep their places in memory, and their reduction in one call, against DDP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from seqlm.training.kernels import GRAPH
from seqlm.training.step.gradients import ALIGNMENT_BYTES, FlatGradients
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.kept_gradient_runs import (
    KINDS,
    OPTIMIZERS,
    train_in_three_processes,
    train_in_two_processes,
)
from tests.workloads.training.training_runs import write_run_file

ROUNDING = 1e-6
"""Largest difference of weights after four steps. Three numbers have several orders of adding them up."""


@pytest.fixture(scope="module")
def two_processes(
    prepared: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Folder of what two processes have written."""
    folder = tmp_path_factory.mktemp("two")
    run_file = write_run_file(folder, prepared, tiny_model)
    run(2, train_in_two_processes, run_file, folder)
    return folder


def run(number: int, target: Callable[..., None], run_file: Path, folder: Path) -> None:
    """Call a function in several processes, and wait for their ends."""
    with forked(number, target, run_file, folder, log=folder / "log") as started:
        assert started.ends(300) == [0] * number, started.output


def written(folder: Path, name: str) -> Any:
    return torch.load(folder / f"{name}.pt", weights_only=False)


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    return max((found[name] - value).abs().max().item() for name, value in expected.items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_processes_train_as_with_ddp(two_processes: Path, optimizer: str) -> None:
    """Each has two micro-batches a step. Bit for bit: adding up two numbers has one order."""
    folder = two_processes / optimizer
    results, weights = written(folder, "ddp-0")
    assert len({result["loss"] for result in results}) == len(results), "nothing was trained"
    for kind in KINDS:
        for rank in range(2):
            found_results, found_weights = written(folder, f"{kind}-{rank}")
            assert found_results == results
            assert largest_difference(found_weights, weights) == 0


def test_checkpoints_of_one_kind_are_resumed_by_the_other(two_processes: Path) -> None:
    _, whole = written(two_processes / "adamw", "ddp-0")
    for name in ("ddp-kept-0", "ddp-kept-1", "kept-ddp-0", "kept-ddp-1"):
        assert largest_difference(written(two_processes, name), whole) == 0, name


def test_fsdp_has_no_kernel_that_keeps_gradients(two_processes: Path) -> None:
    found = [written(two_processes, f"fsdp-{rank}") for rank in range(2)]
    assert found == [frozenset(), frozenset()]


def test_no_process_replays_if_one_cannot_record(two_processes: Path) -> None:
    for rank in range(2):
        recorded, without = written(two_processes, f"recorded-{rank}")
        assert recorded == {GRAPH} and without == frozenset()
    assert (two_processes / "log").read_text().count("warning: kernel graph") == 1


def test_three_processes_train_as_with_ddp(run_file: Path, tmp_path: Path) -> None:
    """One of them has a pack of padding in the second round of a step."""
    run(3, train_in_three_processes, run_file, tmp_path)
    _, expected = written(tmp_path, "ddp-0")
    _, first = written(tmp_path, "kept-0")
    assert largest_difference(first, expected) < ROUNDING
    for rank in range(1, 3):
        _, weights = written(tmp_path, f"kept-{rank}")
        assert largest_difference(weights, first) == 0


class Mixed(nn.Module):
    """Parameters of two types and odd sizes, a sparse gradient, a frozen and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=True)
        self.linear = nn.Linear(3, 7)
        self.coarse = nn.Parameter(torch.ones(7, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, ids: Tensor) -> Tensor:
        hidden: Tensor = self.linear(self.table(ids))
        return (hidden * self.coarse.float() * self.frozen).square().sum()


def test_gradients_are_added_up_in_place() -> None:
    torch.manual_seed(0)
    model = Mixed()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = SGD(trained, lr=0.1)
    gradients = FlatGradients([optimizer], world_size=1)
    assert all(p.grad is None for p in trained), "a checkpoint is restored before the first step"
    micro_batches = [torch.tensor([0, 1, 1]), torch.tensor([4])]

    expected: dict[str, Tensor] = {}
    for ids in micro_batches:
        used = {name: p for name, p in model.named_parameters() if p.requires_grad}
        del used["unused"]
        found = torch.autograd.grad(model(ids), list(used.values()))
        for name, gradient in zip(used, found, strict=True):
            expected[name] = expected.get(name, 0) + gradient.to_dense()

    places: list[int] = []
    for _ in range(2):  # the second step finds what the first one has left
        gradients.begin()
        for ids in micro_batches:
            model(ids).backward()
        gradients.reduce()
        for name, parameter in model.named_parameters():
            if name == "frozen":
                assert parameter.grad is None
                continue
            assert parameter.grad is not None
            wanted = expected.get(name, torch.zeros_like(parameter))
            torch.testing.assert_close(parameter.grad, wanted)
            places.append(parameter.grad.data_ptr())
        optimizer.zero_grad(set_to_none=True)  # as a checkpoint that is restored does
        gradients.end()
    assert places[: len(places) // 2] == places[len(places) // 2 :]
    assert len(set(places)) == len(trained)
    gradients.release()
    assert all(p.grad is None for p in trained)


def test_gradients_begin_at_aligned_places_of_one_buffer() -> None:
    parameters = [nn.Parameter(torch.ones(size)) for size in (1, 100, 64, 3)]
    gradients = FlatGradients([SGD(parameters, lr=0.1)], world_size=1)
    gradients.begin()
    found = [p.grad for p in parameters if p.grad is not None]
    assert len({gradient.untyped_storage().data_ptr() for gradient in found}) == 1
    offsets = [gradient.storage_offset() * gradient.element_size() for gradient in found]
    assert offsets == [0, 256, 768, 1024] and ALIGNMENT_BYTES == 256
