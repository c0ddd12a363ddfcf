"""What the arms of the training benchmark share (weights, proteins, device), and how each is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import torch

from benchmarks.arm_process import Arm
from benchmarks.our_arm import OurArm
from benchmarks.trainer_arms import (
    GUIDANCE_LEARNING_RATE,
    best_arm,
    guidance_arm,
    store_padded_rows,
    store_rows,
)
from workloads.esm2.config import DataConfig, ModelConfig, ModelSize, OptimConfig, RunConfig, TrainConfig
from workloads.esm2.data.run_data import prepare_run
from workloads.esm2.precision import has_bf16_instructions
from workloads.esm2.pretrained import save_model, starting_config, starting_weights
from workloads.esm2.proteins import ProteinSplit

SEED = 0
MAX_RESIDUES = 1022
MAX_PROTEINS = 50_000
"""Proteins tokenized for the Trainer; minutes of EsmTokenizer's time, more than any window sees."""
SPEED_MAX_STEPS = 1_000_000
"""The learning rate hardly falls while speed is measured."""
OUR_LEARNING_RATE = 4e-4

NAMES = {
    "a": "A",
    "a-compiled": "A compiled",
    "a-prime": "A'",
    "a-prime-compiled": "A' compiled",
    "b": "B",
}
"""Arms as the command line and as the table call them."""

CPU_BATCH_SIZE = 8
"""Of A': 4, 8 and 16 measured in turns on a Zen core with avx512_bf16 made 1.30, 1.33 and 1.32 k residues per
CPU second (three windows of 10 s each), 32 no more."""
CPU_TOKENS_PER_PACK = 4096
"""Of B: on the same core 2048 and 4096 made 2.11 and 2.18 k. On CUDA both are searched."""
CUDA_BATCH_SIZES = tuple(8 << power for power in range(8))
CUDA_TOKENS_PER_PACK = tuple(8192 << power for power in range(6))


@dataclass(frozen=True)
class Setup:
    device: torch.device
    model: Path
    """Folder with the weights that every arm starts from."""
    data: Path
    """Prepared folder."""
    padded_rows: Path
    rows: Path
    batch_size: int
    """Of A'."""
    tokens_per_pack: int
    """Of B."""

    @property
    def is_bf16(self) -> bool:
        """Whether A' and B compute in bf16: by the hardware, not by a measurement that may differ."""
        return self.device.type == "cuda" or has_bf16_instructions()

    def arm(
        self,
        key: str,
        *,
        learning_rate: float | None = None,
        max_steps: int = SPEED_MAX_STEPS,
        warmup_steps: int = 0,
    ) -> Arm:
        """The arm with a key of ``NAMES``; A never warms up."""
        compiled = key.endswith("-compiled")
        if key.startswith("a-prime"):
            return best_arm(
                self.model,
                self.rows,
                batch_size=self.batch_size,
                max_steps=max_steps,
                learning_rate=learning_rate or OUR_LEARNING_RATE,
                compiled=compiled,
                is_bf16=self.is_bf16,
                warmup_steps=warmup_steps,
            )
        if key.startswith("a"):
            rate = learning_rate or GUIDANCE_LEARNING_RATE
            return guidance_arm(
                self.model, self.padded_rows, max_steps=max_steps, learning_rate=rate, compiled=compiled
            )
        return OurArm(
            RunConfig(
                name="benchmark",
                model=ModelConfig(init_from=str(self.model), max_residues=MAX_RESIDUES),
                data=DataConfig(path=str(self.data)),
                optim=OptimConfig(lr=learning_rate or OUR_LEARNING_RATE, warmup_steps=warmup_steps),
                train=TrainConfig(
                    seed=SEED,
                    precision="bf16" if self.is_bf16 else "fp32",
                    max_steps=max_steps,
                    tokens_per_pack=self.tokens_per_pack,
                    tokens_per_step=self.tokens_per_pack,
                ),
            )
        )

    def with_batch_size(self, batch_size: int) -> Setup:
        return replace(self, batch_size=batch_size)

    def with_tokens_per_pack(self, tokens: int) -> Setup:
        return replace(self, tokens_per_pack=tokens)


@contextmanager
def prepared(
    model: str,
    data: Path,
    device: torch.device,
    batch_size: int | None,
    tokens_per_pack: int | None,
    progress: Callable[[str], None],
) -> Iterator[Setup]:
    """Weights and tokenized rows in a temporary folder.

    Args:
        model: a published size, or a folder or hub id to start from.
        data: prepared folder; the embedded sample is prepared there if there is none.
        device: where the arms will train.
        batch_size: of A'; None for the default (on CUDA the first that a search tries).
        tokens_per_pack: of B; likewise.
        progress: told what is going on.

    Raises:
        ValueError: if the model or the data cannot be used.
    """
    if not data.exists():
        prepare_run(RunConfig(name="benchmark", data=DataConfig(path=str(data))))
    split = ProteinSplit(data, "train")
    is_cuda = device.type == "cuda"
    with TemporaryDirectory(prefix="bench-training-") as name:
        folder = Path(name)
        progress(f"weights of {model}, and {split.num_units:,} proteins tokenized as the Trainer wants them")
        config = _model_config(model)
        save_model(folder / "model", starting_config(config), starting_weights(config, SEED))
        setup = Setup(
            device,
            folder / "model",
            data,
            folder / "padded_rows",
            folder / "rows",
            batch_size or (CUDA_BATCH_SIZES[0] if is_cuda else CPU_BATCH_SIZE),
            tokens_per_pack or (CUDA_TOKENS_PER_PACK[0] if is_cuda else CPU_TOKENS_PER_PACK),
        )
        store_padded_rows(split, setup.model, setup.padded_rows, MAX_PROTEINS)
        store_rows(split, setup.model, setup.rows, MAX_PROTEINS, MAX_RESIDUES)
        yield setup


def _model_config(model: str) -> ModelConfig:
    for size in get_args(ModelSize):
        if model == size:
            return ModelConfig(size=size)
    return ModelConfig(init_from=model)
