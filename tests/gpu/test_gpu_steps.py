"""Steps on CUDA: masks by a compiled function, gradients in one buffer, and passes as a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import Pack
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.training.kernels import GRAPH
from seqlm.training.packing import PackShape
from seqlm.training.processes import Processes, processes
from seqlm.training.step.loader import read_ahead
from seqlm.training.step.staging import Stager
from seqlm.training.trainer import Trainer
from tests.gpu.conftest import Within
from tests.gpu.drawn import DrawnPretraining, DrawnSplit, Scale
from tests.gpu.test_gpu_hygiene import (
    FLAT_BYTES,
    FLOOR,
    RESUMED,
    SYNCS_PER_STEP,
    allocated_bytes,
    waits_of_the_host,
)

LAUNCHES = 10
"""Largest number of kernels, copies and fills that mask a pack."""
EXACT = ("tokens", "positions", "rows", "targets")
"""Tensors of whole numbers, which are the same on all devices."""
SCALES = 1e-6
"""Largest difference of the scales of tokens, which are quotients in fp32 near 1."""


@pytest.fixture
def here() -> Iterator[Processes]:
    try:
        with processes() as here:
            yield here
    finally:
        if dist.is_initialized():  # left behind by an error
            dist.destroy_process_group()


def drawn_stream(scale: Scale) -> ProteinStream:
    split = DrawnSplit(longest=scale.max_residues + 100)
    return ProteinStream(split, PackShape.of(split, scale.tokens, scale.max_residues), seed=3)


def test_masks_are_those_of_the_cpu(device: torch.device, scale: Scale, within: Within) -> None:
    """Compiled or not, copied by this thread or on a stream of its own."""
    stream = drawn_stream(scale)
    longest = stream.shape.max_length
    stage = Stager(device)
    hosts = [stream.load(planned) for planned in islice(stream.epoch(0), 3)]
    for host in [*hosts, stream.load(None)]:
        expected = mask_pack(host, longest, 0.15, torch.device("cpu"))
        found: dict[str, Pack] = {
            "one by one": mask_pack(host, longest, 0.15, device),
            "compiled": mask_pack(host, longest, 0.15, device, True),
            "staged": mask_pack(stage(host), longest, 0.15, device, True),
        }
        for kind, pack in found.items():
            for name in EXACT:
                assert torch.equal(getattr(pack, name).cpu(), getattr(expected, name)), (kind, name)
            difference = (pack.token_scale.cpu() - expected.token_scale).abs().max().item()
            within(f"scales, {kind}", difference, SCALES)


def test_few_launches_mask_a_pack(device: torch.device, scale: Scale, within: Within) -> None:
    if device.type != "cuda":
        pytest.skip("a CPU has no launches to count")
    stream = drawn_stream(scale)
    staged = Stager(device)(stream.load(next(stream.epoch(0))))
    mask_pack(staged, stream.shape.max_length, 0.15, device, True)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        mask_pack(staged, stream.shape.max_length, 0.15, device, True)
        torch.cuda.synchronize()
    launches = [
        event
        for event in found.events() or ()
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    ]
    assert launches
    within("launches", len(launches), LAUNCHES)


def trainer_with(scale: Scale, here: Processes, *kernels: str) -> Trainer:
    trainer = Trainer(DrawnPretraining(scale, compile=False), here, frozenset(kernels))
    # The rehearsal on a CPU cannot record passes, and launches them.
    assert trainer.kernels == (frozenset(kernels) if here.device.type == "cuda" else frozenset())
    return trainer


def trained(trainer: Trainer, num_steps: int) -> Tensor:
    """Make steps; return the weights as one vector."""
    for step in islice(trainer.steps(), num_steps):
        trainer.step(step)
    trainer.settle()
    return torch.cat([p.detach().flatten().double() for p in trainer.model.parameters()])


def test_a_graph_trains_as_the_operations_do(here: Processes, scale: Scale, within: Within) -> None:
    """Not bit by bit: flash's backward pass adds up in any order, as in two equal runs."""
    start = trained(trainer_with(scale, here), 0)
    plain = trained(trainer_with(scale, here), 4)
    again = trained(trainer_with(scale, here), 4)
    replayed = trainer_with(scale, here, GRAPH)
    assert torch.equal(trained(replayed, 0), start), "the recording changed weights"
    found = trained(replayed, 4)
    moved = (plain - start).norm()
    assert moved > 0
    drift, tolerance = ((x - plain).norm() / moved for x in (found, again))
    within("drift over the run's update", drift.item(), RESUMED * tolerance.item() + FLOOR)


def test_replayed_steps_neither_wait_nor_grow(
    here: Processes, scale: Scale, within: Within
) -> None:
    """Packs come from another thread, and an evaluation lies between the steps."""
    trainer = trainer_with(scale, here, GRAPH)
    with closing(read_ahead(trainer.steps())) as steps:
        for _ in range(2):
            trainer.step(next(steps))
        trainer.evaluate(trainer.objective.split, 1)
        trainer.step(next(steps))
        before = allocated_bytes(here.device)
        with waits_of_the_host(here.device) as waits:
            for _ in range(scale.steps):
                trainer.step(next(steps))
        within("waits per step", len(waits) / scale.steps, SYNCS_PER_STEP)
        within("bytes more", allocated_bytes(here.device) - before, FLAT_BYTES)
    trainer.release()
