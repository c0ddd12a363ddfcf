"""Stage 7: memory and speed of each way to fine-tune the 650M shape.

The rows are those of ``make finetune-table`` (AWS's post on fine-tuning ESM-2) and QLoRA. A step has 16,384
tokens, a micro-batch 4,096: eight proteins of 512 tokens. Without accumulation, a step is one micro-batch.
"""

import time
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.case import Case, Settings, judged
from benchmarks.contestant import steady, synchronize
from benchmarks.ours import model_folder, wanted_kernels
from seqlm.commands.kinds import prepare as prepare_run
from seqlm.proteins.finetune.method_table import METHODS, Method, method_run
from seqlm.proteins.finetune.objective import FineTuning
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.hardware import peak_memory_bytes
from seqlm.training.processes import processes
from seqlm.training.trainer import Trainer

CONFIG = Path(__file__).parents[2] / "workloads/seqlm/configs/finetune/membrane_sample.yaml"
GOAL_GB = 3.3
"""Peak memory in AWS's post with all its methods, for LoRA beside a frozen base in bf16."""
TOKENS = 4096
"""Tokens per pack."""
REHEARSED_TOKENS = 512
PACKS_PER_STEP = 4
MAX_RESIDUES = 510
QLORA = Method("qlora", "QLoRA", accumulation=True, checkpointing=True, lora=True)


def cases(settings: Settings) -> list[Case]:
    shape = f"tokens_per_pack={TOKENS},packs_per_step={PACKS_PER_STEP},max_residues={MAX_RESIDUES}"
    methods = (METHODS[-1], *METHODS[:-1], QLORA)  # the row with a goal comes first
    # Estimated: on an H200, 60 s did not suffice for the first of them.
    return [
        Case("finetune", "650M", method.name, shape, seconds=90, gigabytes=40) for method in methods
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Train on the embedded sample of membrane proteins, with random weights.

    QLoRA is skipped without bitsandbytes, which holds its 4-bit weights.
    """
    if case.contestant == QLORA.name and find_spec("bitsandbytes") is None:
        error = "not installed: bitsandbytes, which QLoRA needs; install requirements.txt"
        return {"verdict": "skipped", "error": error}
    method = next(method for method in (*METHODS, QLORA) if method.name == case.contestant)
    with TemporaryDirectory(prefix="bench-finetune-") as folder:
        config = method_run(_config(case.size, Path(folder), settings), method, 1)
        if method is QLORA and config.lora is not None:
            config = replace(config, lora=replace(config.lora, quantize="nf4"))
        prepare_run(config)
        figures = measure(config, settings)
    is_run_on_gpu = settings.device.type == "cuda" and not settings.rehearsal
    has_goal = method.name == METHODS[-1].name and is_run_on_gpu
    is_met = figures["peak_gb"] <= GOAL_GB
    return {**figures, "verdict": judged(has_goal=has_goal, is_met=is_met)}


def _config(size: str, folder: Path, settings: Settings) -> RunFile:
    """Return the run that each method changes in part."""
    tokens = REHEARSED_TOKENS if settings.rehearsal else TOKENS
    changes = {
        "runs": folder / "runs",
        "model.init_from": model_folder(size, settings, folder),
        "model.max_residues": MAX_RESIDUES,
        "data.path": folder / "data",
        "train.max_steps": 1_000_000,
        "train.tokens_per_pack": tokens,
        "train.tokens_per_step": PACKS_PER_STEP * tokens,
        "train.precision": "bf16" if settings.device.type == "cuda" else "fp32",
    }
    return load_config(CONFIG, [f"{name}={value}" for name, value in changes.items()])


def measure(config: RunFile, settings: Settings) -> dict[str, Any]:
    """Return the peak memory of a run, and its rate over a window from idle device to idle device.

    The window begins after two steps, which compile.
    """
    window = steady(settings)
    with processes() as here:
        trainer = Trainer(FineTuning(config), here, wanted_kernels(settings.kernels))
        steps = trainer.steps()
        for _ in range(1 if settings.rehearsal else 2):
            trainer.step(next(steps))
        synchronize(here.device)
        done: Counter[str] = Counter()
        started = time.perf_counter()
        while done["packs"] < window.steps or time.perf_counter() - started < window.seconds:
            step = next(steps)
            trainer.step(step)
            done.update(packs=len(step.packs), proteins=step.num_records)
            done.update(residues=step.num_record_tokens, slots=step.num_tokens)
        synchronize(here.device)
        spent = time.perf_counter() - started
        figures = {
            "peak_gb": peak_memory_bytes(here.device) / 1e9,
            "residues_per_second": done["residues"] / spent,
            "fill": done["residues"] / done["slots"],
            "packs": done["packs"],
            "tokens_per_pack": config.train.tokens_per_pack,
            "proteins_per_pack": done["proteins"] / done["packs"],
            "mean_residues": done["residues"] / done["proteins"],
            "longest_residues": config.model.max_residues,
            "recomputes": config.train.activation_checkpointing,
            "frozen_bytes": sum(
                p.nbytes for p in trainer.model.parameters() if not p.requires_grad
            ),
            "trained_parameters": sum(
                p.numel() for p in trainer.model.parameters() if p.requires_grad
            ),
        }
        trainer.release()
    return figures
