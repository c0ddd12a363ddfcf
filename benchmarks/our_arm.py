"""Arm B of the training benchmark, this project's training loop, and the product a CPU is measured by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.arm_process import COUNTS, Gate
from workloads.esm2.alphabet import EOS
from workloads.esm2.config import RunConfig
from workloads.esm2.loader import ReadAhead, StepPacks
from workloads.esm2.parallel import bare
from workloads.esm2.pretraining import Pretraining
from workloads.esm2.processes import processes
from workloads.esm2.trainer import Trainer

MATMUL_SHAPE = (2048, 1280, 1280)
"""A pack of tokens times the feed-forward matrix of the 8M model (and the projections of the 650M one)."""


@dataclass(frozen=True)
class OurArm:
    """B: one process, as a run's configuration says."""

    config: RunConfig

    def settings(self) -> dict[str, Any]:
        return {"train": asdict(self.config.train), "optim": asdict(self.config.optim)}

    def run(self, gate: Gate) -> None:
        with processes() as here:
            trainer = Trainer(Pretraining(self.config), here)
            gate.weights = bare(trainer.model).state_dict
            with _steps(trainer) as steps:
                working = gate.enter()
                while working:
                    step = next(steps)
                    before = trainer.progress.loss_sum
                    trainer.step(step)
                    # Of the step before: a window's mean loss leaves out its last step.
                    gate.count(count(step), torch.tensor(trainer.progress.loss_sum - before))
                    working = gate.step_done()


@contextmanager
def _steps(trainer: Trainer) -> Iterator[Iterator[StepPacks]]:
    """The loop's own read-ahead on CUDA. On a CPU it would read between windows, uncounted."""
    if trainer.here.device.type != "cuda":
        yield trainer.steps()
        return
    with closing(ReadAhead(trainer.steps())) as ahead:
        yield iter(ahead)


def count(step: StepPacks) -> torch.Tensor:
    """``COUNTS`` of a step, from the packs themselves."""
    # CLS, PAD and EOS are the first three ids; everything above is a residue.
    residues = sum(int(np.count_nonzero(pack.tokens > EOS)) for pack in step.packs)
    slots = sum(len(pack.tokens) for pack in step.packs)
    values = {
        "proteins": step.num_proteins,
        "residues": residues,
        "attended_pairs": step.num_attended_pairs,
        "slots": slots,
    }
    return torch.tensor([values[name] for name in COUNTS], dtype=torch.float64)


@dataclass(frozen=True)
class MatmulArm:
    """A plain bf16 matrix product again and again; a step is one product."""

    def settings(self) -> dict[str, Any]:
        return {"shape": list(MATMUL_SHAPE), "flops_per_step": matmul_flops()}

    def run(self, gate: Gate) -> None:
        rows, inner, columns = MATMUL_SHAPE
        left = torch.randn(rows, inner, device=gate.device).bfloat16()
        right = torch.randn(inner, columns, device=gate.device).bfloat16()
        out = torch.empty(rows, columns, device=gate.device, dtype=torch.bfloat16)
        working = gate.enter()
        while working:
            torch.matmul(left, right, out=out)
            working = gate.step_done()


def matmul_flops() -> int:
    rows, inner, columns = MATMUL_SHAPE
    return 2 * rows * inner * columns
