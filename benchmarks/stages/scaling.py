"""Stage 10: our trainer on 1, 2, 4 and 8 GPUs of a machine, with as many packs per GPU.

Each process trains under torchrun, as a run does. Rates are those of all GPUs together. The messages of a
step are counted in a step of its own, behind the measured ones, because a profiler slows its process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.case import GPUS_VARIABLE, Case, Line, Settings
from benchmarks.ours import model_folder

NUM_GPUS = (1, 2, 4, 8)
SHAPES = {"8M": 65536, "650M": 16384}
"""Tokens per pack by size."""
MODES = {"8M": ("ddp",), "650M": ("ddp", "fsdp")}
"""Kinds of parallelism by size."""
PACKS_PER_GPU = 4
"""Packs of a step per GPU. Steps of the recipe have 4 or more of them on up to 32 GPUs at 650M."""
REHEARSED_TOKENS = 1024
REHEARSED_GPUS = 2
"""Processes that a rehearsal may start."""
SECONDS = 60
"""Expected wall time, an estimate: several GPUs have never been used."""


def cases(settings: Settings) -> list[Case]:
    found: list[Case] = []
    for size, tokens in SHAPES.items():
        for mode in MODES[size]:
            for gpus in NUM_GPUS:
                shape = f"gpus={gpus},mode={mode},tokens_per_pack={tokens}"
                found.append(Case("scaling", size, "ours", shape, SECONDS, gigabytes=39))
    return found


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Run the trainer on several GPUs. The verdict is ``skipped`` on a machine with fewer."""
    wanted = int(case.values["gpus"])
    devices = visible_gpus()
    available = REHEARSED_GPUS if settings.rehearsal else len(devices)
    if wanted > available:
        reason = f"needs {wanted} GPUs, and this machine has {available}"
        print(reason, flush=True)
        return {"verdict": "skipped", "error": reason}
    tokens = REHEARSED_TOKENS if settings.rehearsal else int(case.values["tokens_per_pack"])
    with TemporaryDirectory(prefix="bench-scaling-") as name:
        folder = Path(name)
        result = folder / "figures.json"
        options = {
            "model": str(model_folder(case.size, settings, folder)),
            "data": str(settings.data.absolute()),
            "tokens_per_pack": tokens,
            "packs_per_process": PACKS_PER_GPU,
            "mode": case.values["mode"],
            "kernels": settings.kernels,
            "window": 0.0 if settings.is_short else settings.window,
            "result": str(result),
        }
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={wanted}", "-m", "benchmarks.scaling_process"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices[:wanted])
        done = subprocess.run([*command, json.dumps(options)], env=environment)
        if done.returncode:
            raise RuntimeError(
                f"torchrun ended with status {done.returncode}; see its messages above"
            )
        figures: dict[str, Any] = json.loads(result.read_text())
    return {**figures, "verdict": "measured"}


def visible_gpus() -> list[str]:
    """Return the GPUs that this run may use, also those that the other stages do not see."""
    given = os.environ.get(GPUS_VARIABLE)
    if given is not None:
        return [gpu for gpu in given.split(",") if gpu]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, _ in enumerate(listed.stdout.splitlines())]


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per number of GPUs, with the efficiency relative to one GPU."""
    alone = {
        (line["size"], line["figures"]["mode"]): line["figures"]["residues_per_second"]
        for line in lines
        if line["figures"]["gpus"] == 1
    }
    found: list[dict[str, str]] = []
    for line in lines:
        figures = line["figures"]
        rate = figures["residues_per_second"]
        one = alone.get((line["size"], figures["mode"]))
        megabytes = sum(message["bytes"] for message in figures["messages"].values()) / 1e6
        found.append(
            {
                "model": line["size"],
                "parallelism": figures["mode"],
                "GPUs": str(figures["gpus"]),
                "residues/s": f"{rate:,.0f}",
                "of linear": f"{rate / (one * figures['gpus']):.0%}" if one else "",
                "ms per step": f"{figures['step_seconds'] * 1e3:,.1f}",
                "MB per step and GPU": f"{megabytes:,.1f}",
            }
        )
    return found
