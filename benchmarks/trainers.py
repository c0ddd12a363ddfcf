"""Protein language models under transformers' ``Trainer`` as contestants, in two set-ups.

``guidance`` is the procedure of AWS's guidance for protein language models on HyperPod (its ``train.py``
under its ``train_ddp.sh``), on the transformers at hand; the guidance pins 4.42.4, whose Trainer arguments
no longer exist. Every protein is a stored row of exactly 512 ids, cut or padded;
``DataCollatorForLanguageModeling`` masks 15 %; batch size 4, AdamW with the Trainer's defaults, learning
rate 5e-5 falling linearly without warm-up, bf16, and ``torch_compile``. Two defaults that cost it time
stay: ``remove_unused_columns`` drops the stored special-tokens mask, which the collator then works out
again, and attention is whatever transformers chooses.

``tuned`` is the best that the same Trainer was found to do with all of its switches, and no code of one's
own: rows without padding, batches grouped by length and padded to their longest, up to 1022 residues, the
stored mask kept, fused AdamW, sdpa, no NaN filter (it waits for the device each step), compiled for dynamic
shapes.

Rows come from a memory-mapped array, which costs less than the tables of ``datasets`` that the guidance
stores. What is not measured is left out: checkpoints, evaluation, reporting, progress bars. The incomplete
last batch of an epoch is dropped, which spares the compiled model a new graph.
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
"""On CUDA, where the collator would hold the device up. On a CPU one process does and counts all work."""
PAD_TO_MULTIPLE_OF = 8
"""Multiple of ``tuned``. Tensor cores need it, and a CPU gets fewer shapes: 1.33 k residues/s, 1.23 k with
1 and 1.30 k with 32, in turns on a Zen 4 core."""
TUNED_OPTIONS: dict[str, Any] = {
    "train_sampling_strategy": "group_by_length",
    "optim": "adamw_torch_fused",
    "remove_unused_columns": False,
    "logging_nan_inf_filter": False,
}
GOLDEN_RATIO = 0.6180339887498949


class Rows(Dataset[dict[str, list[int]]]):
    """Stored rows of ids: padded to their width, or each as long as its protein."""

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
            "special_tokens_mask": (row <= EOS).astype(np.uint8).tolist(),  # CLS, PAD and EOS come first
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
    """One of the two set-ups of the Trainer."""

    name: str
    """``guidance`` or ``tuned``."""
    model: ModelConfig
    rows: Path
    """Folder for rows; written unless it is there, before any time is taken."""
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
        # Set beforehand, dynamic shapes save the graph that torch would make for the first length alone.
        os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"] = str(int(self.is_tuned))
        config = starting_config(self.model)
        with gate.device:
            model = of_config(config).masked_lm.plain(config)
            model.load_state_dict(starting_weights(self.model, SEED))
        gate.weights = model.state_dict
        collator = DataCollatorForLanguageModeling(
            tokenizer(config), pad_to_multiple_of=PAD_TO_MULTIPLE_OF if self.is_tuned else None
        )
        with tempfile.TemporaryDirectory(prefix="bench-trainer-") as output:
            trainer = _GatedTrainer(
                model=model,
                args=self._arguments(output, gate.device),
                train_dataset=Rows(self.rows, padded=not self.is_tuned),
                data_collator=_CountingCollator(collator),
                callbacks=[_GateCallback(gate)],
            )
            trainer.gate = gate
            gate.state = lambda: training_state(model, [trainer.optimizer] if trainer.optimizer else [])
            trainer.remove_callback(PrinterCallback)
            trainer.train()

    def _arguments(self, output: str, device: torch.device) -> TrainingArguments:
        is_cuda = device.type == "cuda"
        workers = (TUNED_WORKERS if self.is_tuned else GUIDANCE_WORKERS) if is_cuda else 0
        rate = LEARNING_RATE if self.is_tuned else GUIDANCE_LEARNING_RATE
        return TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=self.batch_size,
            gradient_accumulation_steps=self.accumulation,
            learning_rate=self.learning_rate or rate,
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
            **(TUNED_OPTIONS if self.is_tuned else {}),
        )


class _CountingCollator:
    """Counts what the collator has put into a batch."""

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
        # As the Trainer makes it, but with lengths that it would get by reading every row.
        sampler = LengthGroupedSampler(
            batch_size * self.args.gradient_accumulation_steps, lengths=self.train_dataset.lengths
        )
        return _SpreadBatches(sampler, batch_size)


class _SpreadBatches(Sampler[int]):
    """The length-grouped batches of the Trainer's sampler, so ordered that any few of them cover all lengths.

    Its own order descends from long to short over fifty batches: a window would see one end of it, and so
    would training, to the disadvantage of ``tuned``. The first batch stays: it holds the longest protein, and
    memory that does not suffice shows at once. An incomplete batch stays last, where the loader drops it.
    """

    def __init__(self, sampler: LengthGroupedSampler, batch_size: int) -> None:
        self._sampler, self._batch_size = sampler, batch_size

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        indices, size, lengths = list(self._sampler), self._batch_size, self._sampler.lengths
        first, *batches = [indices[i : i + size] for i in range(0, len(indices), size)]
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
