"""Training speed of BioNeMo on one GPU, by its own entry point, on the data that our trainer is measured on.

``python -m benchmarks.bionemo [--model 650M] [--data FOLDER] [--micro-batch 8 16] [--beside LINES.jsonl]``

It runs in BioNeMo's image. Our trainer does not run there, because the image's torch is older. Measure it
with ``make gpu ARGS="--stages speed"`` in our image on the same machine and data, and pass the lines as
``--beside``. As there, only real residues count: no CLS, EOS or padding, and no cut-off residues. BioNeMo
does not report which proteins it has drawn. So their number of residues is the mean over the training split,
times the proteins of the steps.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.case import Line, prepare_unless_there, read_lines, say
from benchmarks.contestant import (
    REHEARSED,
    ContestantFailedError,
    ContestantProcess,
    Gate,
    Grant,
    Window,
)
from seqlm.bionemo.command import (
    SPECIAL_TOKENS,
    Data,
    Devices,
    arguments,
    row_tokens,
    step_proteins,
)
from seqlm.bionemo.config import BionemoConfig
from seqlm.bionemo.export import export_run
from seqlm.bionemo.files import export_files
from seqlm.bionemo.installed import recorded_release, require, run_entry_point
from seqlm.bionemo.recorder import TRAIN_LOSS, registered
from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.runs.run_file import ModelConfig, RunFile
from seqlm.training.command_line import RunError
from seqlm.training.config import DataConfig, OptimConfig, TrainConfig
from seqlm.training.records import RecordSplit

MAX_STEPS = 1_000_000
"""Steps of the schedule, so many that the learning rate hardly falls while speed is measured."""
MICRO_BATCHES = (8, 16, 32, 64)
WARMUP = Grant(seconds=10, steps=40)
STEADY = Grant(seconds=4, steps=10)
"""Shortest window after the warm-up."""


@dataclass(frozen=True)
class BionemoArm:
    """``train_esm2`` on one device. A callback of Lightning holds it between windows."""

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


def main(given: Sequence[str] | None = None) -> None:
    options = _parse(given)
    try:
        require()
        with TemporaryDirectory(prefix="bench-bionemo-") as folder:
            result = measure(options, Path(folder))
    except (RunError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    if options.beside:
        result["beside"] = beside(result, read_lines([options.beside]))
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure windows of each micro batch size; sizes that do not fit into memory are left out."""
    prepare_unless_there(options.data)
    found: dict[int, list[Window]] = {}
    warmup = REHEARSED if options.quick else WARMUP
    grant = REHEARSED if options.quick else STEADY
    for size in options.micro_batch:
        arm = arm_of(options.model, options.data, size, folder / str(size))
        try:
            with closing(ContestantProcess("BioNeMo", arm, warmup)) as process:
                found[size] = [process.window(grant) for _ in range(options.rounds)]
        except ContestantFailedError as error:
            if not error.out_of_memory:
                raise SystemExit(f"error: {error}") from None
            say(f"micro batches of {size} do not fit")
    if not found:
        raise ValueError(
            f"--micro-batch: none of {options.micro_batch} fits into memory; set smaller sizes"
        )
    rates = {
        size: statistics.median(window.residues_per_second for window in windows)
        for size, windows in found.items()
    }
    best = max(rates, key=lambda size: rates[size])
    return {
        "model": options.model,
        "data": str(options.data),
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        "release": recorded_release(),
        "micro_batch": best,
        "residues_per_second": rates[best],
        "by_micro_batch": rates,
        "windows": {
            size: [asdict(window) for window in windows] for size, windows in found.items()
        },
    }


def arm_of(model: str, data: Path, micro_batch: int, folder: Path) -> BionemoArm:
    """Return a contestant with steps of one micro batch."""
    max_residues = ESM2.max_residues
    tokens = micro_batch * (max_residues + SPECIAL_TOKENS)
    config = RunFile(
        name="benchmark",
        runs=str(folder),
        model=ModelConfig(size=model),
        data=DataConfig(path=str(data)),
        optim=OptimConfig(warmup_steps=0),
        # As in our contestant, nothing is logged, and the evaluation at the end is short.
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
    split = RecordSplit(data, "train")
    _, lengths = split.draw(0, split.num_units, seed=0, epoch=0)
    return BionemoArm(
        config=config,
        data=Data(export_files(data), facts.num_validation),
        counts=step_counts(lengths, proteins=step_proteins(config), tokens=row_tokens(config)),
    )


def step_counts(
    lengths: np.ndarray[Any, np.dtype[np.int64]], proteins: int, tokens: int
) -> tuple[float, ...]:
    """Return the ``COUNTS`` of a step, for a number of proteins in rows that are cut off at ``tokens``."""
    cut = np.minimum(lengths + SPECIAL_TOKENS, tokens)
    residues = float((cut - SPECIAL_TOKENS).mean()) * proteins
    attended_pairs = float((cut.astype(np.float64) ** 2).mean()) * proteins
    return proteins, residues, attended_pairs, proteins * tokens


def beside(result: dict[str, Any], lines: Sequence[Line]) -> dict[str, Any]:
    """Return the best rate of our trainer in one-pack steps, from lines of the acceptance run, and the ratio.

    Raises:
        ValueError: if no line has the same model, data and device.
    """
    model = result["model"]
    data = result["data"]
    device = result["device"]
    rates: list[float] = []
    for line in lines:
        is_same = (line["stage"], line["size"], line["device"]) == ("speed", model, device)
        has_same_data = Path(line["data"]).name == Path(data).name
        if is_same and has_same_data and "one_pack_steps" in line["figures"]:
            rates.append(float(line["figures"]["one_pack_steps"]["residues_per_second"]))
    if not rates:
        raise ValueError(
            f"--beside: has no speed of {model} on {data} and {device}; measure it there: "
            f'make gpu ARGS="--stages speed --only /{model}/ --data {data}"'
        )
    best = max(rates)
    return {"residues_per_second": best, "ratio": best / result["residues_per_second"]}


def table(result: dict[str, Any]) -> str:
    lines = [
        f"BioNeMo {result['release']}, ESM-2 {result['model']} on {result['data']}, {result['device']}"
    ]
    for size, rate in result["by_micro_batch"].items():
        lines.append(f"  micro batch {size:>3}: {rate:>12,.0f} real residues/s")
    if found := result.get("beside"):
        lines.append(
            f"  ours          : {found['residues_per_second']:>12,.0f}, {found['ratio']:.2f}x"
        )
    return "\n".join(lines)


def _parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=ESM2.sizes, default="8M")
    parser.add_argument(
        "--data", type=Path, default=Path("data/sample"), help="folder of prepared proteins"
    )
    parser.add_argument("--micro-batch", type=int, nargs="+", default=list(MICRO_BATCHES))
    parser.add_argument("--rounds", type=int, default=5, help="windows of each micro batch size")
    parser.add_argument(
        "--beside", type=Path, help="file with lines of the acceptance run for comparison"
    )
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument(
        "--quick", action="store_true", help="use windows of one step, to test the setup"
    )
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
