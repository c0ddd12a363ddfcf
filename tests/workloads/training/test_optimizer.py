"""Muon in batches equals torch's Muon, sharded or not, and a flag on the device stops every update."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Muon, Optimizer

from seqlm.training import optimizer
from seqlm.training.config import OptimConfig
from seqlm.training.optimizer import BatchedMuon, build_optimizers, create_state
from tests.workloads.training.forked_processes import forked

SHAPES = [(24, 24), (33, 24), (24, 33)]
"""Square, tall and wide; two processes share 33 rows as 17 and 16."""
PER_SHAPE = 5
"""Matrices of each shape, of which two processes orthogonalize 3 and 2."""
SETTINGS = {"lr": 1e-2, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.randn(shape) * 0.02 for shape in SHAPES)


class Model(nn.Module):
    """Matrices of layers, which Muon updates, and one of which AdamW does."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Layer() for _ in range(PER_SHAPE))
        self.head = nn.Parameter(torch.randn(7, 24))


def matrices(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 0.02 for shape in SHAPES * PER_SHAPE]


def step_with(
    optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()


def test_batches_give_what_torch_gives_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In stacks of at most two matrices; products of a batch may round otherwise, in bf16."""
    monkeypatch.setattr(optimizer, "STACK_BYTES", 2 * 2 * 24 * 33)
    ours, theirs = ([nn.Parameter(x) for x in matrices(0)] for _ in range(2))
    batched = BatchedMuon(ours, **SETTINGS)
    plain = Muon(theirs, **SETTINGS)  # type: ignore[arg-type]
    for seed in range(1, 4):
        step_with(batched, ours, matrices(seed))
        step_with(plain, theirs, matrices(seed))
    for one, other in zip(ours, theirs, strict=True):
        # An update's elements are about 0.2 of the learning rate, 3 significant digits of them are bf16's.
        torch.testing.assert_close(one, other, atol=2e-5, rtol=0)
        found = batched.state[one]
        expected = plain.state[other]
        assert found.keys() == expected.keys() == {"momentum_buffer"}
        torch.testing.assert_close(found["momentum_buffer"], expected["momentum_buffer"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_muon_computes_in_the_type_of_the_run(dtype: torch.dtype) -> None:
    muon = build_optimizers(Model(), OptimConfig(name="muon"), dtype)[0]
    parameters = muon.param_groups[0]["params"]
    with patch.object(optimizer, "newton_schulz", wraps=optimizer.newton_schulz) as called:
        step_with(muon, parameters, [torch.randn_like(x) for x in parameters])
    assert {call.args[0].dtype for call in called.call_args_list} == {dtype}


def everything(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[Tensor]:
    """Copies of parameters, moments and step counters, of this process."""
    states = [state.values() for each in optimizers for state in each.state.values()]
    tensors = itertools.chain(model.parameters(), *states)
    return [(x.to_local() if isinstance(x, DTensor) else x).detach().clone() for x in tensors]


def check_flag(model: nn.Module, spread: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A step changes all of the state, but nothing of it once ``found_inf`` is 1."""
    optimizers = build_optimizers(model, OptimConfig(name="muon", weight_decay=0.1))
    stopped = torch.zeros(())
    for each in optimizers:
        each.found_inf = stopped  # type: ignore[attr-defined]
    seen = []
    for value, flag in (
        (0.1, 0.0),
        (0.2, 0.0),
        (float("nan"), 1.0),
        (float("inf"), 1.0),
        (0.3, 1.0),
    ):
        stopped.fill_(flag)
        for parameter in model.parameters():
            parameter.grad = spread(torch.full(parameter.shape, value), parameter)
        for each in optimizers:
            each.step()
        seen.append(everything(model, optimizers))
    first, second, *after = seen
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for later in after:
        assert all(torch.equal(a, b) for a, b in zip(second, later, strict=True))


def test_a_flag_stops_every_update() -> None:
    torch.manual_seed(0)
    check_flag(Model(), lambda gradient, parameter: gradient)


def compare_sharded(file: Path) -> None:
    """Run by each of two processes: FSDP2 over both, then HSDP of two replicas."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    expected = torch.load(file)
    for sizes in ((2,), (2, 1)):
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])
        model = Model()
        for layer in model.encoder.layer:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

        def spread(whole: Tensor, parameter: Tensor) -> DTensor:
            assert isinstance(parameter, DTensor)
            return distribute_tensor(whole, parameter.device_mesh, parameter.placements)

        parameters = [x for layer in model.encoder.layer for x in layer.matrices]
        with torch.no_grad():
            for parameter, value in zip(parameters, matrices(0), strict=True):
                parameter.copy_(spread(value, parameter))
        muon = BatchedMuon(parameters, **SETTINGS)  # type: ignore[arg-type]
        with patch.object(optimizer, "newton_schulz", wraps=optimizer.newton_schulz) as called:
            for seed in range(1, 4):
                gradients = [spread(*pair) for pair in zip(matrices(seed), parameters, strict=True)]
                step_with(muon, parameters, gradients)
        orthogonalized = [len(call.args[0]) for call in called.call_args_list]
        # In each of three steps, three or two of each shape; a shard group of one process has all five.
        assert orthogonalized == [[3, 2][rank] if len(sizes) == 1 else PER_SHAPE] * 9
        for parameter, value in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.full_tensor(), value, atol=2e-5, rtol=0)
        check_flag(model, spread)
    dist.destroy_process_group()


@pytest.mark.long
def test_shards_give_what_whole_matrices_give(tmp_path: Path) -> None:
    whole = [nn.Parameter(x) for x in matrices(0)]
    muon = BatchedMuon(whole, **SETTINGS)  # type: ignore[arg-type]
    for seed in range(1, 4):
        step_with(muon, whole, matrices(seed))
    torch.save([x.detach() for x in whole], tmp_path / "whole")
    with forked(2, compare_sharded, tmp_path / "whole", log=tmp_path / "log") as started:
        assert started.ends() == [0, 0], started.output


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_created_state_is_like_that_of_the_first_step(name: str) -> None:
    """A saved state is read into it, so a part that it lacks would not be read."""
    by_step = build_optimizers(Model(), OptimConfig(name=name))  # type: ignore[arg-type]
    created = build_optimizers(Model(), OptimConfig(name=name))  # type: ignore[arg-type]
    for stepped, new in zip(by_step, created, strict=True):
        parameters = [p for group in stepped.param_groups for p in group["params"]]
        step_with(stepped, parameters, parameters)
        create_state(new)
    assert [shapes_of(one) for one in created] == [shapes_of(one) for one in by_step]


def test_a_state_that_exists_is_left_alone() -> None:
    (adamw,) = build_optimizers(Model(), OptimConfig())
    parameters = [p for group in adamw.param_groups for p in group["params"]]
    step_with(adamw, parameters, parameters)
    create_state(adamw)
    assert {int(state["step"]) for state in adamw.state.values()} == {1}


def shapes_of(adamw_or_muon: Optimizer) -> list[dict[str, tuple[torch.Size, torch.dtype]]]:
    """Names, shapes and types of the state of each parameter, in the order of the parameters."""
    return [
        {name: (value.shape, value.dtype) for name, value in adamw_or_muon.state[one].items()}
        for group in adamw_or_muon.param_groups
        for one in group["params"]
    ]
