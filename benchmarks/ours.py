"""Our training loop as a contestant, and the models and run configurations of all contestants."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.case import AUTO_KERNELS, Settings
from benchmarks.contestant import Gate, training_state
from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.proteins.model.pretrained import save_esm
from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import ModelConfig, ModelFamilyName, ModelSize, RunFile
from seqlm.training.config import DataConfig, OptimConfig, TrainConfig
from seqlm.training.kernels import GRAPH, KERNELS, listed
from seqlm.training.parallel import bare
from seqlm.training.processes import Processes, processes
from seqlm.training.records import RecordSplit
from seqlm.training.step.loader import StepPacks, read_ahead
from seqlm.training.trainer import Trainer

SEED = 0
MAX_RESIDUES = 1022
LEARNING_RATE = 4e-4
TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
"""Shape in a rehearsal; a family's configuration may lack the last two."""
RECIPE_TOKENS = 2_097_152
"""Tokens of an optimizer step of ESM-2's recipe (Lin et al. 2023)."""


def family_with(size: str) -> ModelFamilyName:
    """Return the family that has a published size; no two families share one."""
    families = get_args(ModelFamilyName)
    found: ModelFamilyName = next(name for name in families if size in MODEL_FAMILIES[name].sizes)
    return found


def model_of(size: str, settings: Settings, folder: Path, layers: int | None = None) -> ModelConfig:
    """Return a published size with random weights.

    In a rehearsal it is a tiny model. That and a model with other ``layers`` are written to ``folder``.
    """
    if settings.rehearsal or layers:
        start = str(model_folder(size, settings, folder, layers))
        return ModelConfig(init_from=start, max_residues=MAX_RESIDUES)
    published = next(name for name in get_args(ModelSize) if name == size)
    return ModelConfig(family=family_with(size), size=published, max_residues=MAX_RESIDUES)


def model_folder(size: str, settings: Settings, folder: Path, layers: int | None = None) -> Path:
    """Write a published size with random weights, in a rehearsal a tiny model, in transformers' format."""
    architecture = MODEL_FAMILIES[family_with(size)].architecture()
    config: Any = architecture.published(size)
    if settings.rehearsal:
        for name, value in TINY.items():
            if hasattr(config, name):
                setattr(config, name, value)
    if layers:
        config.num_hidden_layers = layers
    torch.manual_seed(SEED)
    save_esm(folder / "model", config, architecture.masked_lm.plain(config).state_dict())
    return folder / "model"


def drawn_proteins(settings: Settings, number: int) -> list[npt.NDArray[np.uint8]]:
    """Return distinct proteins of the prepared folder that fit every contestant, in a random order."""
    split = RecordSplit(settings.data, "train")
    places, lengths = split.draw(0, split.num_units, seed=SEED, epoch=0)
    short = np.flatnonzero(lengths <= MAX_RESIDUES)
    if len(short) < number:
        raise ValueError(
            f"--data: {settings.data} has {len(short)} proteins of at most {MAX_RESIDUES} residues; expected "
            f"at least {number}"
        )
    chosen = np.random.default_rng(SEED).permutation(short)[:number]
    return [split.token_ids(places[index]) for index in chosen.tolist()]


def run_config(
    model: ModelConfig, data: Path, train: TrainConfig, optim: OptimConfig | None = None
) -> RunFile:
    """Return a run's configuration. ``train`` sets the precision, so that no run selects its own."""
    optim = optim or OptimConfig(lr=LEARNING_RATE, warmup_steps=0)
    return RunFile(
        name="benchmark", model=model, data=DataConfig(path=str(data)), optim=optim, train=train
    )


def wanted_kernels(text: str) -> frozenset[str] | None:
    """Return the kernels of a value of ``--kernels``; None for ``auto``, with which the run decides.

    Raises:
        ValueError: if a name is not in the table of kernels.
    """
    if text == AUTO_KERNELS:
        return None
    names = frozenset() if text == "off" else frozenset(text.split(","))
    if unknown := sorted(names - KERNELS.keys()):
        raise ValueError(
            f"--kernels: got {', '.join(unknown)}; allowed are auto, off, or {', '.join(KERNELS)}, separated "
            "by commas"
        )
    return names


@contextmanager
def trainer_of(config: RunFile, kernels: frozenset[str] | None = None) -> Iterator[Trainer]:
    """Yield a trainer of this process alone.

    Args:
        config: configuration of the run.
        kernels: kernels of our own; None for those that ``train.kernels`` selects.

    Raises:
        RuntimeError: if a GPU cannot use the kernels. Their figures would be those of others.
    """
    with processes() as here:
        trainer = new_trainer(config, here, kernels)
        is_measured = here.device.type == "cuda" and kernels is not None
        if is_measured and trainer.kernels & offered_kernels(trainer) != kernels:
            raise RuntimeError(
                f"kernels: the trainer uses {listed(trainer.kernels)}, of which the run offers "
                f"{listed(offered_kernels(trainer))}; expected {listed(kernels or ())}; see the warnings "
                "above"
            )
        yield trainer


def new_trainer(config: RunFile, here: Processes, kernels: frozenset[str] | None = None) -> Trainer:
    """Return a trainer of a process, with random weights or those of the run's start."""
    return Trainer(_OnDevice(config, here.device), here, kernels)


def offered_kernels(trainer: Trainer) -> frozenset[str]:
    """Return the names of the kernels that the model and the run can compute with."""
    offered = bare(trainer.model).kernels
    return offered | {GRAPH} if trainer.objective.has_constant_passes else offered


class _OnDevice(Pretraining):
    """Pre-training with random weights drawn on the device, because 3B would take minutes on the host."""

    def __init__(self, config: RunFile, device: torch.device) -> None:
        super().__init__(config)
        self._device = device

    def weights(self) -> dict[str, Tensor]:
        with self._device:
            weights = super().weights()
        if not self.config.model.init_from:
            return weights
        # Memory of a file that safetensors maps cannot be parked.
        return {name: tensor.clone() for name, tensor in weights.items()}


@dataclass(frozen=True)
class Ours:
    """Our loop in one process."""

    config: RunFile
    kernels: frozenset[str] | None = None
    """Kernels of our own; None for those that ``train.kernels`` selects."""

    def run(self, gate: Gate) -> None:
        with trainer_of(self.config, self.kernels) as trainer:
            if gate.parks and GRAPH in trainer.kernels:
                raise RuntimeError(
                    "kernels: a CUDA graph refers to memory that would leave the device between windows; "
                    "leave out graph, or use a GPU with memory for all contestants"
                )
            gate.notes = lambda: {"kernels": listed(trainer.kernels)}
            gate.weights = bare(trainer.model).state_dict
            gate.state = lambda: training_state(trainer.model, trainer.optimizers)
            gate.loss_sum = lambda: _losses(trainer)
            may_work = gate.enter()
            while may_work:
                # A window may change the size of steps, which needs another stream of them.
                packs_per_step = gate.packs_per_step
                with steps_of(trainer, packs_per_step or self.config.packs_per_step) as steps:
                    while may_work and gate.packs_per_step == packs_per_step:
                        step = next(steps)
                        trainer.step(step)
                        gate.count(counts_of(step))
                        may_work = gate.step_done()


def _losses(trainer: Trainer) -> float:
    trainer.settle()
    return trainer.progress.loss_sum


@contextmanager
def steps_of(trainer: Trainer, packs_per_step: int) -> Iterator[Iterator[StepPacks]]:
    """Yield steps of ``packs_per_step`` packs from the run's position.

    On CUDA they come from the loop's own read-ahead. On a CPU it would also read between windows, where its
    time is not counted.
    """
    steps = trainer.steps(packs_per_step)
    if trainer.here.device.type != "cuda":
        yield steps
        return
    with closing(read_ahead(steps)) as ahead:
        yield ahead


def counts_of(step: StepPacks) -> Tensor:
    """Return the ``COUNTS`` of a step of one process."""
    counts = (step.num_records, step.num_record_tokens, step.num_attended_pairs, step.num_tokens)
    return torch.tensor(counts, dtype=torch.float64)
