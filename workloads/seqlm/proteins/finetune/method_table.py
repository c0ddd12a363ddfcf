"""Comparison of the memory-saving methods: one run after another, and a table of their cost and scores.

``python -m seqlm.proteins.finetune.method_table --config RUN.yaml [section.field=value ...]``

The rows are those of AWS's post on fine-tuning ESM-2 on SageMaker
(https://aws.amazon.com/blogs/machine-learning/efficiently-fine-tune-the-esm-2-protein-language-model-with-amazon-sagemaker/):
all weights in one micro-batch per device and step, then each method alone, then all together. Steps, data and
tokens per step are the same in every row. Each is a run of its own in fresh processes, so that its peak of
memory is its own. If the command is given again, it is resumed or kept like any run.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from seqlm.launch.local import processes_and_threads
from seqlm.launch.python_path import hand_on_python_path
from seqlm.runs.run_file import RunFile, run_stage
from seqlm.training.command_line import RunError
from seqlm.training.config import LoraConfig
from seqlm.training.tracking.run_log import RESULTS_FILE
from seqlm.training.whole_file import write_whole

from .report import TITLES
from .task_kinds import TASK_KINDS

TABLE_FILE = "methods.md"
FIGURES_FILE = "methods.json"


@dataclass(frozen=True)
class Method:
    """Combination of memory-saving methods, which is a row of the table."""

    name: str
    """End of the run's name."""
    title: str
    """Title of the row."""
    accumulation: bool = False
    """Whether a device's share of a step is divided into micro-batches of ``train.tokens_per_pack``."""
    checkpointing: bool = False
    """Whether activations are computed again in the backward pass."""
    lora: bool = False
    """Whether adapters are trained in place of all weights."""


METHODS = (
    Method("base", "base: all weights"),
    Method("accumulation", "gradient accumulation", accumulation=True),
    Method("checkpointing", "gradient checkpointing", checkpointing=True),
    Method("lora", "LoRA", lora=True),
    Method("all", "all methods together", accumulation=True, checkpointing=True, lora=True),
)


def method_run(config: RunFile, method: Method, num_devices: int) -> RunFile:
    """Return the run of a method."""
    whole = config.train.tokens_per_step // num_devices
    train = replace(
        config.train,
        tokens_per_pack=config.train.tokens_per_pack if method.accumulation else whole,
        activation_checkpointing=method.checkpointing,
    )
    lora = (config.lora or LoraConfig()) if method.lora else None
    return replace(config, name=f"{config.name}-{method.name}", train=train, lora=lora)


def check(config: RunFile, num_devices: int) -> None:
    """Raise ValueError for a configuration with which the rows would not differ."""
    if config.task is None:
        raise ValueError(
            "task: is missing; the table compares ways of fine-tuning, so give a run that has one"
        )
    train = config.train
    if train.tokens_per_step % (2 * num_devices * train.tokens_per_pack):
        raise ValueError(
            f"train.tokens_per_step: got {train.tokens_per_step}; for {num_devices} device(s) with micro-"
            f"batches of train.tokens_per_pack ({train.tokens_per_pack}) give a multiple of "
            f"{2 * num_devices * train.tokens_per_pack}, so that each accumulates two at least"
        )


def launch(file: Path) -> int:
    """Run a configuration on this machine as ``make finetune-lora`` does; return the exit status."""
    hand_on_python_path()
    command = [sys.executable, "-m", "seqlm", "train", "--config", str(file)]
    return subprocess.run(command, check=False).returncode


def row(method: Method, kind: str, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of the table, from the results of a run."""
    first, second = TASK_KINDS[kind].headlines[:2]
    prefix = "test_" if results.get("test_samples") else "eval_"
    return {
        "method": method.title,
        "minutes": results["train_runtime"] / 60,
        first: results[prefix + first],
        second: results[prefix + second],
        "peak_memory_bytes": results["peak_memory_bytes"],
        "trained_parameters": results["parameters"],
        "residues_per_second": results["train_residues_per_second"],
    }


def markdown(rows: Sequence[Mapping[str, Any]], environment: Mapping[str, Any]) -> str:
    """Return the table with the hardware and versions of the runs."""
    scores = [name for name in rows[0] if name in TITLES]
    head = ["method", "minutes", *(TITLES[name] for name in scores)]
    head += ["peak memory, GB", "trained parameters", "residues/s"]
    lines = [
        [
            str(line["method"]),
            f"{line['minutes']:.1f}",
            *(f"{line[name]:.3f}" for name in scores),
            f"{line['peak_memory_bytes'] / 1e9:.2f}",
            f"{line['trained_parameters']:,}",
            f"{line['residues_per_second']:,.0f}",
        ]
        for line in rows
    ]
    rule = ["---"] * len(head)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *lines])
    where = ", ".join(
        f"{name} {environment[name]}"
        for name in ("device", "cpu_cores", "python", "torch")
        if name in environment
    )
    return f"{table}\n\n{where}\n"


def main(config: RunFile) -> None:
    num_devices, _ = processes_and_threads()
    check(config, num_devices)
    assert config.task is not None
    folder = config.run_dir
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    environment: Mapping[str, Any] = {}
    for method in METHODS:
        run = method_run(config, method, num_devices)
        file = folder / f"{method.name}.yaml"
        write_whole(file, yaml.safe_dump(run.to_dict(), sort_keys=False))
        status = launch(file)
        if status:
            raise RunError(
                f"the run of {method.title} ended with status {status}; the same command continues "
                f"from there, and {file} is the configuration of this run alone"
            )
        results = json.loads((run.run_dir / RESULTS_FILE).read_text())
        rows.append(row(method, config.task.kind, results))
        environment = results["environment"]
    figures = {"rows": rows, "environment": environment}
    write_whole(folder / FIGURES_FILE, json.dumps(figures, indent=1) + "\n")
    text = markdown(rows, environment)
    write_whole(folder / TABLE_FILE, text)
    print(f"{text}\n{folder / TABLE_FILE}")


if __name__ == "__main__":
    run_stage(main)
