"""Training speed of BioNeMo by its own entry point, on the data that our trainer is measured on.

It is measured in BioNeMo's image, whose torch is too old for our trainer. Measure that with ``--stages
speed`` in our image on the same machine and data, and give the lines with ``--done`` for the ratio. Residues
are real ones, as there: no CLS, EOS or padding, nothing cut off. BioNeMo does not report which proteins it
has drawn, so they are the mean over the training split, times the proteins of the steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.case import Case, Line, Settings, read_lines
from benchmarks.contestant import REHEARSED, Gate, Grant, windows_of
from workloads.bionemo.command import SPECIAL_TOKENS, Data, Devices, arguments, row_tokens, step_proteins
from workloads.bionemo.config import BionemoConfig
from workloads.bionemo.export import export_run
from workloads.bionemo.export_files import export_files
from workloads.bionemo.installed import recorded_release, require, run_entry_point
from workloads.bionemo.recorder import TRAIN_LOSS, registered
from workloads.esm2.shapes import SHAPES
from workloads.families import MODEL_FAMILIES
from workloads.run_file import ModelConfig, RunFile
from workloads.training.config import DataConfig, OptimConfig, TrainConfig
from workloads.training.records import ProteinSplit

MAX_STEPS = 1_000_000
"""The learning rate hardly falls while speed is measured."""
MICRO_BATCHES = (8, 16, 32, 64)
ROUNDS = 5


@dataclass(frozen=True)
class BionemoArm:
    """``train_esm2`` on one device, held between windows by a callback of Lightning's."""

    config: RunFile
    data: Data
    counts: tuple[float, ...]
    """``COUNTS`` of a step."""

    def words(self) -> list[str]:
        return [*arguments(self.config, Devices(1, 1), self.data), "--disable-checkpointing"]

    def run(self, gate: Gate) -> None:
        with registered(_GateHooks(gate, self.counts)):
            run_entry_point("train_esm2", self.words())


class _GateHooks:
    def __init__(self, gate: Gate, counts: Sequence[float]) -> None:
        self._gate = gate
        self._counts = torch.tensor(counts, dtype=torch.float64)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        trainer.should_stop = not self._gate.enter()

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self._gate.count(self._counts, torch.as_tensor(trainer.callback_metrics[TRAIN_LOSS]))
        trainer.should_stop = not self._gate.step_done()


def cases(settings: Settings) -> list[Case]:
    """Return one case per size and micro batch.

    Raises:
        RunError: if BioNeMo is not installed.
    """
    require()
    shapes = [f"micro_batch={number}" for number in MICRO_BATCHES]
    return [Case("bionemo", size, "BioNeMo", shape, 180) for size in SHAPES for shape in shapes]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    micro_batch = 4 if settings.rehearsal else int(case.values["micro_batch"])
    warmup, grant, rounds = (Grant(10, 40), Grant(4, 10), ROUNDS)
    if settings.rehearsal:
        warmup, grant, rounds = REHEARSED, REHEARSED, 2
    with TemporaryDirectory(prefix="bench-bionemo-") as folder:
        arm = arm_of(case.size, settings.data, micro_batch, Path(folder))
        _, *windows = windows_of(arm, [warmup, *[grant] * rounds])
    rate = statistics.median(window.residues_per_second for window in windows)
    ours = ours_beside(case, settings)
    return {
        "release": recorded_release(),
        "residues_per_second": rate,
        "windows": len(windows),
        "slots_per_window": windows[0].slots,
        "ours_over_it": max(ours) / rate if ours else None,
    }


def arm_of(model: str, data: Path, micro_batch: int, folder: Path) -> BionemoArm:
    """A step of one micro batch."""
    max_residues = MODEL_FAMILIES["esm2"].max_residues
    tokens = micro_batch * (max_residues + SPECIAL_TOKENS)
    config = RunFile(
        name="benchmark",
        runs=str(folder),
        model=ModelConfig(size=model),
        data=DataConfig(path=str(data)),
        optim=OptimConfig(warmup_steps=0),
        # Nothing is logged, as in our arm, and the evaluation at the end is short.
        train=TrainConfig(
            max_steps=MAX_STEPS,
            tokens_per_pack=tokens,
            tokens_per_step=tokens,
            log_every_steps=MAX_STEPS,
            eval_packs=1,
        ),
        bionemo=BionemoConfig(check_every_steps=MAX_STEPS),
    )
    facts = export_run(config)
    split = ProteinSplit(data, "train")
    _, lengths = split.draw(0, split.num_units, seed=0, epoch=0)
    return BionemoArm(
        config,
        Data(export_files(data), facts.num_validation),
        step_counts(lengths, step_proteins(config), row_tokens(config)),
    )


def step_counts(
    lengths: np.ndarray[Any, np.dtype[np.int64]], proteins: int, tokens: int
) -> tuple[float, ...]:
    """``COUNTS`` of a step with so many proteins in rows of so many tokens, cut off there."""
    cut = np.minimum(lengths + SPECIAL_TOKENS, tokens)
    residues = float((cut - SPECIAL_TOKENS).mean()) * proteins
    attended_pairs = float((cut.astype(np.float64) ** 2).mean()) * proteins
    return proteins, residues, attended_pairs, proteins * tokens


def ours_beside(case: Case, settings: Settings) -> list[float]:
    """Rates of our trainer's one-pack steps for the same model, data and device, from earlier lines."""
    device = torch.cuda.get_device_name(settings.device) if settings.device.type == "cuda" else "cpu"
    return [
        float(line["figures"]["one_pack_steps"]["residues_per_second"])
        for line in read_lines(settings.lines)
        if (line["stage"], line["size"], line["device"]) == ("speed", case.size, device)
        and Path(line["data"]).name == settings.data.name
        and "one_pack_steps" in line["figures"]
    ]


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per size and micro batch."""
    return [
        {
            "model": line["size"],
            "release": line["figures"]["release"],
            "shape": line["shape"].replace("_", " "),
            "residues/s": f"{line['figures']['residues_per_second']:,.0f}",
            "ours over it": f"{ratio:.2f}x" if (ratio := line["figures"]["ours_over_it"]) else "",
        }
        for line in lines
    ]
