"""Stands in for BioNeMo's entry points, in a process that imports it as ``bionemo`` (``make_packages``).

What is real: the command lines, as they are recorded, of which nothing else is taken; data read with pandas
and sqlite3 in the way of BioNeMo's datasets; Lightning's entry points for callbacks; what NeMo 2.5.0 and
Lightning 2.5.5 refuse; NeMo's names of checkpoints, its mark of unfinished ones, and its answer to SIGTERM, a
save and an exit with 0. What is not: any training. A step is a pause.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas

from seqlm.bionemo.installed import OPTIONS_FILE

STEP_SECONDS = "STAND_IN_STEP_SECONDS"
KILLED_AT = "STAND_IN_KILLED_AT"
"""Environment variable: step after which the first process gets SIGTERM, as of a preemption."""
CONVERTER_STATUS = "STAND_IN_CONVERTER_STATUS"
_TYPES = {"int": int, "float": float, "path": Path, "text": str}


def make_packages(folder: Path) -> Path:
    """Write packages that bring this module under BioNeMo's names, for a ``PYTHONPATH``."""
    for name in ("train_esm2", "finetune_esm2"):
        module = folder / f"bionemo/esm2/scripts/{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(
            "import stand_in_bionemo\n\ndef get_parser(parser):\n"
            + "".join(
                f"    parser.add_argument({option!r})\n" for option in _recorded(name)["options"]
            )
            + f"def {name}_entrypoint():\n    stand_in_bionemo.train({name!r})\n"
        )
    converter = folder / "bionemo/esm2/model/convert.py"
    converter.parent.mkdir()
    commands = [command.replace("-", "_") for command in _recorded("convert")["commands"]]
    converter.write_text(
        "".join(f"def {command}():\n    pass\n" for command in commands)
        + "import stand_in_bionemo\n\ndef app():\n    stand_in_bionemo.convert()\n"
    )
    callbacks = folder / "lightning/pytorch/callbacks.py"
    callbacks.parent.mkdir(parents=True)
    callbacks.write_text("class Callback:\n    pass\n")
    shutil.copy(__file__, folder / "stand_in_bionemo.py")
    return folder


def _recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OPTIONS_FILE.read_text())["entry_points"][name]
    return found


def get_parser(name: str) -> argparse.ArgumentParser:
    found = _recorded(name)
    parser = argparse.ArgumentParser(name, allow_abbrev=False)
    for option, kind in found["options"].items():
        needed = option in found["required"]
        if kind == "flag":
            parser.add_argument(option, action="store_true")
        elif isinstance(kind, list):
            parser.add_argument(option, choices=kind, required=needed)
        elif kind == "number or None":
            parser.add_argument(option, type=lambda text: None if text == "None" else float(text))
        elif kind.endswith("s"):
            parser.add_argument(option, nargs="+")
        else:
            parser.add_argument(option, type=_TYPES[kind], required=needed)
    return parser


def check_conversion(words: list[str]) -> None:
    """Stand in for the converter, by the record of its commands and options."""
    found = _recorded("convert")
    command, *given = words
    options = [word for word in given if word.startswith("--")]
    assert len(given) - len(options) == len(found["commands"][command])
    assert all(found["options"][option] == "flag" for option in options)


def convert() -> None:
    check_conversion(sys.argv[1:])
    assert not {"WORLD_SIZE", "TORCHELASTIC_RUN_ID"} & {*os.environ}, (
        "Lightning would take part in a job"
    )
    (Path(sys.argv[3]) / "context").mkdir(parents=True)
    sys.exit(int(os.environ.get(CONVERTER_STATUS, "0")))


def train(name: str) -> None:
    options = get_parser(name).parse_args()
    read = _read_clusters if name == "train_esm2" else _read_tables
    read(options)
    if options.restore_from_checkpoint_path is not None:
        assert (options.restore_from_checkpoint_path / "context").is_dir()
    trainer = SimpleNamespace(
        global_step=0, callback_metrics={}, sanity_checking=False, should_stop=False
    )
    hooks = [
        callback
        for factory in entry_points(group="lightning.pytorch.callbacks_factory")
        for callback in factory.load()()
    ]

    def call(hook: str, *arguments: Any) -> None:
        for callback in hooks:
            if hasattr(callback, hook):
                getattr(callback, hook)(trainer, None, *arguments)

    checkpoints = options.result_dir / options.experiment_name / "checkpoints"
    if options.resume_if_exists:
        trainer.global_step = _resume(checkpoints)
    if trainer.global_step >= options.num_steps:
        raise RuntimeError("no samples left to consume")
    if options.val_check_interval > options.num_steps * options.accumulate_grad_batches:
        raise ValueError("`val_check_interval` must be less than or equal to the training batches")
    stop = SimpleNamespace(received=False)
    signal.signal(signal.SIGTERM, lambda *_: setattr(stop, "received", True))
    call("on_train_start")
    while trainer.global_step < options.num_steps and not trainer.should_stop:
        time.sleep(float(os.environ.get(STEP_SECONDS, "0")))
        trainer.global_step += 1
        step = trainer.global_step
        trainer.callback_metrics = {"reduced_train_loss": 3.0 - step / 1000, "lr": options.lr}
        if _is_first() and os.environ.get(KILLED_AT) == str(step):
            os.kill(os.getpid(), signal.SIGTERM)
        if stop.received:
            # Its callback comes before those of other packages.
            call("on_save_checkpoint", {})
            _save(checkpoints, options, step)
            sys.exit(0)
        call("on_train_batch_end", None, None, step - 1)
        is_due = step % options.val_check_interval == 0
        if is_due:
            call("on_validation_start")
            trainer.callback_metrics |= {"val_loss": 2.9, "val_ppl": 18.2}
            call("on_validation_end")
        if is_due or step == options.num_steps:
            for _ in ("last", "best"):
                call("on_save_checkpoint", {})
            _save(checkpoints, options, step)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _resume(checkpoints: Path) -> int:
    """Step of the newest whole checkpoint that is called the last one (NeMo's AutoResume)."""
    found = [*checkpoints.glob("*-last")]
    whole = [path for path in found if not path.with_name(f"{path.name}-unfinished").exists()]
    if found and not whole:
        raise ValueError("Last checkpoint is unfinished and cannot be used to resume the training.")
    steps = {int(json.loads((path / "weights/step.json").read_text())): path for path in whole}
    if not steps:
        return 0
    metadata = steps[max(steps)] / "weights/adapter_metadata.json"
    if metadata.exists():
        frozen = Path(json.loads(metadata.read_text())["model_ckpt_path"]) / "weights"
        if not frozen.is_dir():
            raise FileNotFoundError(f"Checkpoint file not found: {frozen}")
    return max(steps)


def _save(checkpoints: Path, options: argparse.Namespace, step: int) -> None:
    if not _is_first():
        return
    before = [path for path in checkpoints.glob("*-last") if path.is_dir()]
    # Counted from 0, as NeMo's are.
    path = (
        checkpoints
        / f"epoch=0-step={step - 1}-consumed_samples={step * options.micro_batch_size}.0-last"
    )
    mark = path.with_name(f"{path.name}-unfinished")
    checkpoints.mkdir(parents=True, exist_ok=True)
    mark.touch()
    for folder in ("context", "weights"):
        (path / folder).mkdir(parents=True, exist_ok=True)
    (path / "weights/step.json").write_text(json.dumps(step))
    if getattr(options, "lora_finetune", False):
        (path / "weights/adapter_metadata.json").write_text('{"model_ckpt_path": "None"}')
    mark.unlink()
    for old in before:
        if old != path:
            shutil.rmtree(old)


def _read_clusters(options: argparse.Namespace) -> None:
    for clusters, database, column in (
        (options.train_cluster_path, options.train_database_path, "ur90_id"),
        (options.valid_cluster_path, options.valid_database_path, "ur50_id"),
    ):
        ids = pandas.read_parquet(clusters)[column]
        first = ids[0][0] if column == "ur90_id" else ids[0]
        with sqlite3.connect(str(database)) as connection:
            query = "SELECT sequence FROM protein WHERE id = ?"
            sequence = connection.execute(query, (str(first),)).fetchone()[0]
        assert re.fullmatch("[A-Z.-]+", sequence)


def _read_tables(options: argparse.Namespace) -> None:
    for path in (options.train_data_path, options.valid_data_path):
        table = pandas.read_csv(path)
        assert len(table["sequences"]) == len(table[options.label_column]) > 0


if __name__ == "__main__":
    sys.exit("import bionemo instead")
