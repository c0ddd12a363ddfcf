"""Protein language models under transformers' ``Trainer`` as contestants, in three configurations.

``guidance`` is the procedure of AWS's guidance for protein language models on HyperPod (its ``train.py``
under its ``train_ddp.sh``), on the installed transformers. The guidance pins 4.42.4, and the arguments of
that version's Trainer no longer exist. Its settings are:

* Every protein is a stored row of exactly 512 ids, cut or padded.
* ``DataCollatorForLanguageModeling`` masks 15 %, and the batch size is 4.
* AdamW has the Trainer's defaults. The learning rate falls linearly from 5e-5 without warm-up.
* The model computes in bf16 and is compiled.
* Two defaults that cost time stay. ``remove_unused_columns`` drops the stored special-tokens mask, which the
  collator then computes again. Attention is the implementation that transformers chooses.

``tuned`` is the fastest configuration found for the same Trainer with padded batches:

* Rows have no padding. Batches are grouped by length and padded to their longest, up to 1022 residues.
* The stored mask is kept. AdamW is fused, and attention is sdpa.
* The NaN filter is off, because it waits for the device at each step.
* Layers are compiled for dynamic shapes. The mask is always passed, because transformers drops that of a
  batch without padding, which would be another graph. cuDNN's attention, which prepares a plan for every
  shape, is off. The first two batches are the longest and the shortest, so that both are compiled early.

``packed`` has the options of ``tuned``, and packs of a constant number of tokens in place of padded batches
(``benchmarks/packed_rows.py``). It needs about a hundred lines of code of its own. It is the strongest
opponent, and its quality is not compared, because token dropout acts on a pack as a whole.

All of them compile each layer in place, which takes a few lines outside the Trainer. Its own switch,
``torch_compile``, compiles the whole model, which took 31 s at 8M and 78 s at 650M on an H200. Its switch for
regional compilation fails for ESM-2 (``TypeError: LayerNorm does not support len()``, transformers 5.17).

Rows come from a memory-mapped array, which costs less than the tables of ``datasets`` that the guidance
stores. Checkpoints, evaluation, reporting and progress bars are left out, because they are not measured. The
incomplete last batch of an epoch is dropped, so that the compiled model needs no new graph.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.data import Dataset, Sampler
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    DataCollatorForLanguageModeling,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.trainer_pt_utils import LengthGroupedSampler

from benchmarks.contestant import Gate, training_state
from benchmarks.figures import Precision
from benchmarks.ours import LEARNING_RATE, MAX_RESIDUES, SEED
from benchmarks.packed_rows import PackCollator, Packs, use_varlen_attention
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
PACKED_OPTIONS: dict[str, Any] = {
    "optim": "adamw_torch_fused",
    "remove_unused_columns": False,
    "logging_nan_inf_filter": False,
}
TUNED_OPTIONS: dict[str, Any] = {**PACKED_OPTIONS, "train_sampling_strategy": "group_by_length"}
OPTIONS: dict[str, dict[str, Any]] = {
    "guidance": {},
    "tuned": TUNED_OPTIONS,
    "packed": PACKED_OPTIONS,
}
"""Arguments of the Trainer that differ from its defaults, by contestant."""
SDPA_WITH_MASK = "benchmark_sdpa_with_mask"
"""Name of ``tuned``'s attention function in transformers' table."""
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
    """One of the configurations of the Trainer."""

    name: str
    """``guidance``, ``tuned`` or ``packed``."""
    model: ModelConfig
    rows: Path
    """Folder of rows. If it is missing, it is written before any time is measured."""
    data: Path
    batch_size: int
    """Rows of a batch; for ``packed``, tokens of a pack."""
    precision: Precision
    compiled: bool
    accumulation: int = 1
    learning_rate: float | None = None
    max_steps: int = TrainConfig.max_steps
    warmup_steps: int = 0

    def run(self, gate: Gate) -> None:
        is_guidance = self.name == "guidance"
        if not self.rows.exists():
            tokens = GUIDANCE_TOKENS if is_guidance else MAX_RESIDUES + SPECIAL_TOKENS
            store_rows(RecordSplit(self.data, "train"), self.rows, tokens)
        config = starting_config(self.model)
        with gate.device:
            model = of_config(config).masked_lm.plain(config)
            model.load_state_dict(starting_weights(self.model, SEED))
        gate.weights = model.state_dict
        self._prepare(model)
        multiple = PAD_TO_MULTIPLE_OF if self.name == "tuned" else None
        collator = DataCollatorForLanguageModeling(tokenizer(config), pad_to_multiple_of=multiple)
        dataset: Rows | Packs = Rows(self.rows, padded=is_guidance)
        counting: _CountingCollator | PackCollator = _CountingCollator(collator)
        if self.name == "packed":
            dataset = Packs(self.rows, self.batch_size)
            counting = PackCollator(collator)
        with tempfile.TemporaryDirectory(prefix="bench-trainer-") as output:
            trainer = _GatedTrainer(
                model=model,
                args=self._arguments(output, gate.device),
                train_dataset=dataset,
                data_collator=counting,
                callbacks=[_GateCallback(gate)],
            )
            trainer.gate = gate
            gate.state = lambda: training_state(
                model, [trainer.optimizer] if trainer.optimizer else []
            )
            gate.notes = lambda: {"graphs": counters["stats"]["unique_graphs"]}
            trainer.remove_callback(PrinterCallback)
            trainer.train()

    def _prepare(self, model: Any) -> None:
        """Set the model's attention, and compile its layers."""
        if self.name == "packed":
            use_varlen_attention(model)
        if self.name == "tuned":
            # Inductor's fused reductions else depend on the size of a batch, which compiles layers again.
            torch._inductor.config.triton.mix_order_reduction_non_strict_mode = True
            torch.backends.cuda.enable_cudnn_sdp(False)
            AttentionInterface.register(SDPA_WITH_MASK, sdpa_attention_forward)
            AttentionMaskInterface.register(SDPA_WITH_MASK, _kept_mask)
            model.set_attn_implementation(SDPA_WITH_MASK)
        if self.compiled:
            for layer in layers_of(model):
                layer.compile(dynamic=self.name == "tuned")

    def _arguments(self, output: str, device: torch.device) -> TrainingArguments:
        is_cuda = device.type == "cuda"
        is_guidance = self.name == "guidance"
        workers = GUIDANCE_WORKERS if is_guidance else TUNED_WORKERS
        if not is_cuda:
            workers = 0
        default_rate = GUIDANCE_LEARNING_RATE if is_guidance else LEARNING_RATE
        return TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=1 if self.name == "packed" else self.batch_size,
            gradient_accumulation_steps=self.accumulation,
            learning_rate=self.learning_rate or default_rate,
            lr_scheduler_type="linear",
            warmup_steps=self.warmup_steps,
            max_steps=self.max_steps,
            bf16=self.precision == "bf16",
            use_cpu=not is_cuda,
            dataloader_num_workers=workers,
            dataloader_persistent_workers=workers > 0,
            dataloader_pin_memory=is_cuda,
            dataloader_drop_last=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            **OPTIONS[self.name],
        )


def layers_of(model: nn.Module) -> nn.ModuleList:
    """Return the transformer layers of a model of transformers, its longest list of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=len)


def _kept_mask(*arguments: Any, **keywords: Any) -> Tensor | None:
    """Return the mask of sdpa, also that of a batch without padding."""
    keywords["allow_is_bidirectional_skip"] = False
    return sdpa_mask(*arguments, **keywords)


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
    the longest protein and shows at once whether memory suffices. The shortest batch comes second, so that
    whatever depends on the size of a batch is compiled within the first two steps. An incomplete batch stays
    last, where the loader drops it.
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
        shortest = batches[:1]
        batches = batches[1:]
        # Multiples of the golden ratio, modulo 1, fill the interval evenly from the first few on.
        places = (torch.arange(len(batches)) * GOLDEN_RATIO + torch.rand(1)) % 1
        order = places.argsort().argsort().tolist()
        chosen = [first, *shortest, *(batches[place] for place in order), *incomplete]
        return iter([index for batch in chosen for index in batch])


class _GateCallback(TrainerCallback):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = not self._gate.enter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = not self._gate.step_done()
