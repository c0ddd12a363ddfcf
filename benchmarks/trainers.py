"""Protein language models under transformers' ``Trainer`` as contestants, in two configurations.

``guidance`` is the procedure of AWS's guidance for protein language models on HyperPod (its ``train.py``
under its ``train_ddp.sh``), on the installed transformers. The guidance pins 4.42.4, and the arguments of
that version's Trainer no longer exist. Its settings are:

* Every protein is a stored row of exactly 512 ids, cut or padded.
* ``DataCollatorForLanguageModeling`` masks 15 %, and the batch size is 4.
* AdamW has the Trainer's defaults. The learning rate falls linearly from 5e-5 without warm-up.
* The model computes in bf16, with ``torch_compile``.
* Two defaults that cost time stay. ``remove_unused_columns`` drops the stored special-tokens mask, which the
  collator then computes again. Attention is the implementation that transformers chooses.

``tuned`` is the fastest configuration found for the same Trainer with its own switches and no other code:

* Rows have no padding. Batches are grouped by length and padded to their longest, up to 1022 residues.
* The stored mask is kept. AdamW is fused, and attention is sdpa.
* The NaN filter is off, because it waits for the device at each step.
* The model is compiled for dynamic shapes.

Rows come from a memory-mapped array, which costs less than the tables of ``datasets`` that the guidance
stores. Checkpoints, evaluation, reporting and progress bars are left out, because they are not measured. The
incomplete last batch of an epoch is dropped, so that the compiled model needs no new graph.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler
from transformers import (
    DataCollatorForLanguageModeling,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from benchmarks.contestant import Gate, training_state
from benchmarks.figures import Precision
from benchmarks.ours import LEARNING_RATE, MAX_RESIDUES, SEED
from seqlm.proteins.alphabet import CLS, EOS, PAD
from seqlm.proteins.model.pretrained import of_config, starting_config, starting_weights, tokenizer
from seqlm.runs.run_file import ModelConfig
from seqlm.training.config import TrainConfig
from seqlm.training.packing import SPECIAL_TOKENS
from seqlm.training.records import RecordSplit

GUIDANCE_TOKENS = 512
GUIDANCE_BATCH_SIZE = 4
GUIDANCE_LEARNING_RATE = 5e-5
GUIDANCE_WORKERS = 2
TUNED_WORKERS = 8
"""Workers on CUDA, so that the device does not wait for the collator. A CPU has none: one process does all
work, and its time is counted."""
PAD_TO_MULTIPLE_OF = 8
"""Multiple of ``tuned``. Tensor cores need it, and a CPU gets fewer shapes. On a Zen 4 core, interleaved runs
reached 1.33 k residues/s with 8, 1.23 k with 1 and 1.30 k with 32."""
TUNED_OPTIONS: dict[str, Any] = {
    "train_sampling_strategy": "group_by_length",
    "optim": "adamw_torch_fused",
    "remove_unused_columns": False,
    "logging_nan_inf_filter": False,
}
GOLDEN_RATIO = 0.6180339887498949


class Rows(Dataset[dict[str, list[int]]]):
    """Stored rows of ids, padded to their width or as long as their proteins."""

    def __init__(self, folder: Path, *, padded: bool) -> None:
        self._ids = np.load(folder / "ids.npy", mmap_mode="r")
        self.lengths: list[int] = np.load(folder / "lengths.npy").tolist()
        self._padded = padded

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        row = self._ids[index] if self._padded else self._ids[index, : self.lengths[index]]
        return {
            "input_ids": row.tolist(),
            "attention_mask": (row != PAD).astype(np.uint8).tolist(),
            # CLS, PAD and EOS have the lowest ids.
            "special_tokens_mask": (row <= EOS).astype(np.uint8).tolist(),
        }


def store_rows(split: RecordSplit, folder: Path, num_tokens: int) -> None:
    """Write the proteins of a split as rows of ``num_tokens`` ids, cut or padded, and their lengths."""
    places, lengths = split.draw(0, split.num_units, seed=0, epoch=0)
    kept = np.minimum(lengths, num_tokens - SPECIAL_TOKENS)
    folder.mkdir(parents=True)
    ids = np.lib.format.open_memmap(folder / "ids.npy", "w+", np.uint8, (len(places), num_tokens))
    ids[:] = PAD
    ids[:, 0] = CLS
    for row, place, length in zip(ids, places, kept.tolist(), strict=True):
        row[1 : length + 1] = split.token_ids(place)[:length]
        row[length + 1] = EOS
    np.save(folder / "lengths.npy", kept + SPECIAL_TOKENS)


@dataclass(frozen=True)
class Trainers:
    """One of the two configurations of the Trainer."""

    name: str
    """``guidance`` or ``tuned``."""
    model: ModelConfig
    rows: Path
    """Folder of rows. If it is missing, it is written before any time is measured."""
    data: Path
    batch_size: int
    precision: Precision
    compiled: bool
    accumulation: int = 1
    learning_rate: float | None = None
    max_steps: int = TrainConfig.max_steps
    warmup_steps: int = 0

    @property
    def is_tuned(self) -> bool:
        return self.name == "tuned"

    def run(self, gate: Gate) -> None:
        if not self.rows.exists():
            tokens = MAX_RESIDUES + SPECIAL_TOKENS if self.is_tuned else GUIDANCE_TOKENS
            store_rows(RecordSplit(self.data, "train"), self.rows, tokens)
        # Without this, torch would first compile a graph for the length of the first batch alone.
        os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"] = str(int(self.is_tuned))
        config = starting_config(self.model)
        with gate.device:
            model = of_config(config).masked_lm.plain(config)
            model.load_state_dict(starting_weights(self.model, SEED))
        gate.weights = model.state_dict
        multiple = PAD_TO_MULTIPLE_OF if self.is_tuned else None
        collator = DataCollatorForLanguageModeling(tokenizer(config), pad_to_multiple_of=multiple)
        with tempfile.TemporaryDirectory(prefix="bench-trainer-") as output:
            trainer = _GatedTrainer(
                model=model,
                args=self._arguments(output, gate.device),
                train_dataset=Rows(self.rows, padded=not self.is_tuned),
                data_collator=_CountingCollator(collator),
                callbacks=[_GateCallback(gate)],
            )
            trainer.gate = gate
            gate.state = lambda: training_state(
                model, [trainer.optimizer] if trainer.optimizer else []
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()

    def _arguments(self, output: str, device: torch.device) -> TrainingArguments:
        is_cuda = device.type == "cuda"
        workers = TUNED_WORKERS if self.is_tuned else GUIDANCE_WORKERS
        if not is_cuda:
            workers = 0
        default_rate = LEARNING_RATE if self.is_tuned else GUIDANCE_LEARNING_RATE
        options = TUNED_OPTIONS if self.is_tuned else {}
        return TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=self.batch_size,
            gradient_accumulation_steps=self.accumulation,
            learning_rate=self.learning_rate or default_rate,
            lr_scheduler_type="linear",
            warmup_steps=self.warmup_steps,
            max_steps=self.max_steps,
            bf16=self.precision == "bf16",
            torch_compile=self.compiled,
            use_cpu=not is_cuda,
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
            dataloader_pin_memory=is_cuda,
            dataloader_drop_last=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            **options,
        )


class _CountingCollator:
    """Collator that adds the ``COUNTS`` of the batch to it."""

    def __init__(self, collator: DataCollatorForLanguageModeling) -> None:
        self._collator = collator

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        batch = self._collator(rows)
        lengths = batch["attention_mask"].sum(dim=1)  # of each protein, with CLS and EOS
        residues = lengths - SPECIAL_TOKENS
        batch["counts"] = torch.tensor(
            [len(lengths), residues.sum(), (lengths**2).sum(), batch["input_ids"].numel()],
            dtype=torch.float64,
        )
        return batch


class _GatedTrainer(Trainer):
    gate: Gate

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        counts = inputs.pop("counts")
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self.gate.count(counts, loss)
        return loss

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        batch_size = self.args.train_batch_size
        assert isinstance(self.train_dataset, Rows)
        # The Trainer creates the same sampler, but reads every row for the lengths.
        sampler = LengthGroupedSampler(
            batch_size * self.args.gradient_accumulation_steps, lengths=self.train_dataset.lengths
        )
        return _SpreadBatches(sampler, batch_size)


class _SpreadBatches(Sampler[int]):
    """Length-grouped batches of the Trainer's sampler, in an order in which a few batches cover all lengths.

    The sampler's own order descends from long to short over fifty batches. A window would see only one end of
    it, and so would training, to the disadvantage of ``tuned``. The first batch stays first, because it has
    the longest protein and shows at once whether memory suffices. An incomplete batch stays last, where the
    loader drops it.
    """

    def __init__(self, sampler: LengthGroupedSampler, batch_size: int) -> None:
        self._sampler = sampler
        self._batch_size = batch_size

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        size = self._batch_size
        lengths = self._sampler.lengths
        indices = list(self._sampler)
        first, *batches = [indices[start : start + size] for start in range(0, len(indices), size)]
        incomplete = [batches.pop()] if batches and len(batches[-1]) < size else []
        batches.sort(key=lambda batch: max(lengths[index] for index in batch))
        # Multiples of the golden ratio, modulo 1, fill the interval evenly from the first few on.
        places = (torch.arange(len(batches)) * GOLDEN_RATIO + torch.rand(1)) % 1
        order = places.argsort().argsort().tolist()
        chosen = [first, *(batches[place] for place in order), *incomplete]
        return iter([index for batch in chosen for index in batch])


class _GateCallback(TrainerCallback):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = not self._gate.enter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = not self._gate.step_done()
