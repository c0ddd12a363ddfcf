"""Arms A and A' of the training benchmark: ESM-2 under transformers' ``Trainer``.

A is the procedure of AWS's guidance for protein language models on HyperPod (its ``train.py`` under its
``train_ddp.sh``), on the transformers of this project; the guidance pins 4.42.4, whose Trainer arguments no
longer exist. Every protein is tokenized beforehand to a stored row of exactly 512 ids, cut or padded;
``DataCollatorForLanguageModeling`` masks 15 %; batch size 4, AdamW with the Trainer's defaults, learning
rate 5e-5 falling linearly without warm-up, bf16, and ``torch_compile``. Two defaults that cost it time stay:
``remove_unused_columns`` drops the stored special-tokens mask, which the collator then works out again, and
attention is whatever transformers chooses.

A' is the best that the same Trainer was found to do with all of its switches, and no code of one's own:
rows without padding, batches grouped by length and padded to their longest, up to 1022 residues, the stored
mask kept, fused AdamW, sdpa, no NaN filter (it waits for the device each step), and its best batch size.
On a Zen core with avx512_bf16, bf16 makes it 1.3 times as fast as fp32, and compiling for dynamic shapes
another 5 %.

Both leave out what the benchmark does not measure: checkpoints, evaluation, reporting, progress bars. The
incomplete last batch of an epoch is dropped, which spares the compiled arms a new graph.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import (
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    EsmForMaskedLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

from benchmarks.arm_process import Gate
from workloads.esm2.alphabet import TOKENS
from workloads.esm2.proteins import ProteinSplit

GUIDANCE_TRANSFORMERS = "4.42.4"
GUIDANCE_TOKENS = 512
GUIDANCE_BATCH_SIZE = 4
GUIDANCE_LEARNING_RATE = 5e-5
GUIDANCE_WORKERS = 2
BEST_WORKERS = 8
"""On CUDA, where the collator would hold the device up. On a CPU one process does and counts all work."""
PAD_TO_MULTIPLE_OF = 8
"""Of A'; tensor cores want it, and a CPU meets fewer shapes: 1.33 k residues/s against 1.23 k with 1 and
1.30 k with 32, in turns on a Zen core."""
GOLDEN_RATIO = 0.6180339887498949
SPECIAL_TOKENS = 2


@dataclass(frozen=True)
class TrainerArm:
    """One set-up of the Trainer."""

    model: Path
    """Folder with starting weights and tokenizer."""
    rows: Path
    """Folder of tokenized rows."""
    batch_size: int
    learning_rate: float
    max_steps: int
    compiled: bool
    is_bf16: bool
    warmup_steps: int = 0
    pad_to_multiple_of: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Further ``TrainingArguments``."""

    def settings(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "max_steps": self.max_steps,
            "torch_compile": self.compiled,
            "bf16": self.is_bf16,
            "pad_to_multiple_of": self.pad_to_multiple_of,
            **self.options,
        }

    def run(self, gate: Gate) -> None:
        is_cuda = gate.device.type == "cuda"
        # Said at once, dynamic shapes save the graph that torch would make for the first length alone.
        if "train_sampling_strategy" in self.options:
            os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"] = "1"
        options = dict(self.options)
        workers = options.pop("dataloader_num_workers")
        workers = workers if is_cuda else 0
        model = EsmForMaskedLM.from_pretrained(self.model, dtype=torch.float32)
        gate.weights = model.state_dict
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        with tempfile.TemporaryDirectory(prefix="bench-trainer-") as output:
            arguments = TrainingArguments(
                output_dir=output,
                per_device_train_batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                lr_scheduler_type="linear",
                warmup_steps=self.warmup_steps,
                max_steps=self.max_steps,
                bf16=self.is_bf16,
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
            trainer = _GatedTrainer(
                model=model,
                args=arguments,
                train_dataset=datasets.load_from_disk(str(self.rows)),
                data_collator=_CountingCollator(
                    DataCollatorForLanguageModeling(tokenizer, pad_to_multiple_of=self.pad_to_multiple_of)
                ),
                callbacks=[_GateCallback(gate)],
            )
            trainer.gate = gate
            trainer.remove_callback(PrinterCallback)
            trainer.train()


def guidance_arm(
    model: Path, rows: Path, *, max_steps: int, learning_rate: float, compiled: bool
) -> TrainerArm:
    """A. ``rows`` are those of ``store_padded_rows``."""
    return TrainerArm(
        model,
        rows,
        GUIDANCE_BATCH_SIZE,
        learning_rate,
        max_steps,
        compiled,
        is_bf16=True,
        options={"dataloader_num_workers": GUIDANCE_WORKERS},
    )


def best_arm(
    model: Path,
    rows: Path,
    *,
    batch_size: int,
    max_steps: int,
    learning_rate: float,
    compiled: bool,
    is_bf16: bool,
    warmup_steps: int = 0,
) -> TrainerArm:
    """A'. ``rows`` are those of ``store_rows``."""
    options = {
        "train_sampling_strategy": "group_by_length",
        "optim": "adamw_torch_fused",
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "dataloader_num_workers": BEST_WORKERS,
    }
    return TrainerArm(
        model,
        rows,
        batch_size,
        learning_rate,
        max_steps,
        compiled,
        is_bf16,
        warmup_steps,
        pad_to_multiple_of=PAD_TO_MULTIPLE_OF,
        options=options,
    )


def store_padded_rows(split: ProteinSplit, model: Path, folder: Path, num_proteins: int) -> None:
    """The guidance's rows: 512 ids, attention mask and special-tokens mask of every protein, stored."""
    _tokenize(
        split,
        model,
        folder,
        num_proteins,
        {"padding": "max_length", "truncation": True, "max_length": GUIDANCE_TOKENS},
    )


def store_rows(split: ProteinSplit, model: Path, folder: Path, num_proteins: int, max_residues: int) -> None:
    """Unpadded rows of at most ``max_residues`` residues, stored with their special-tokens mask."""
    _tokenize(
        split, model, folder, num_proteins, {"truncation": True, "max_length": max_residues + SPECIAL_TOKENS}
    )


def _tokenize(
    split: ProteinSplit, model: Path, folder: Path, num_proteins: int, options: dict[str, Any]
) -> None:
    letters = np.array(TOKENS)
    places, _ = split.draw(0, min(num_proteins, split.num_units), seed=0, epoch=0)
    # EsmTokenizer makes one id of a run of unknown letters; it is given X, as the other arms are given <unk>.
    texts = ["".join(letters[split.residues(place)]).replace("<unk>", "X") for place in places]
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenized = tokenizer(texts, return_special_tokens_mask=True, **options)
    rows = datasets.Dataset.from_dict(dict(tokenized))
    rows.save_to_disk(str(folder))


class _CountingCollator:
    """Counts what the collator has put into a batch."""

    def __init__(self, collator: DataCollatorForLanguageModeling) -> None:
        self._collator = collator

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        batch = self._collator(rows)
        lengths = batch["attention_mask"].sum(dim=1)  # of each protein, CLS and EOS counted
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
        sampler = super()._get_train_sampler(train_dataset)
        if not isinstance(sampler, LengthGroupedSampler):
            return sampler
        return _SpreadBatches(sampler, self.args.train_batch_size)


class _SpreadBatches(Sampler[int]):
    """The length-grouped batches of the Trainer's sampler, so ordered that any few of them cover all lengths.

    Its own order descends from long to short over fifty batches: a window would see one end of it, and so
    would training, to the harm of A'. The first batch stays: it holds the longest protein, and memory that
    does not suffice is known at once. An incomplete batch stays last, where the loader drops it.
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
