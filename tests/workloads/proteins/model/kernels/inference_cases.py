"""Engine and commands of inference with the attention kernels, run in the interpreter's process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from seqlm.proteins.inference import engine as engine_module
from seqlm.proteins.inference.embed import embed
from seqlm.proteins.inference.engine import (
    EMBEDDING,
    MASKED_LOGITS,
    RESIDUE_EMBEDDINGS,
    Array,
    Engine,
)
from seqlm.proteins.inference.variants import variants
from seqlm.proteins.model.kernels import attention_launch
from seqlm.runs.run_file import RunFile, load_config
from seqlm.training.processes import Processes, processes
from tests.workloads.proteins.model.kernels.model_cases import (
    ATTENTION_KERNEL,
    NONE,
    model_of,
)

LONGEST = 40
LENGTHS = (1, 7, 40, 55)
"""Lengths of proteins, one of them above ``LONGEST``: it is read in windows."""
ANSWERS = {
    "embedding": EMBEDDING,
    "residues": RESIDUE_EMBEDDINGS,
    "logits": MASKED_LOGITS,
}
PROTEINS = "id,sequence\nP1,MKTAYIAKQR\nP2,MKVLAGGWTNDE\n"
COMMANDS: dict[str, Callable[[RunFile, Processes], None]] = {"embed": embed, "variants": variants}


def engine_of(model: Any, kernels: frozenset[str]) -> Engine:
    return Engine(
        model,
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_residues=LONGEST,
        kernels=kernels,
    )


def answers(family: str, answer: str, kernels: frozenset[str]) -> list[Array]:
    """Return the answers of an engine for random proteins, and check that it uses the kernels."""
    rng = np.random.default_rng(0)
    proteins = [rng.integers(4, 24, size=length).astype(np.uint8) for length in LENGTHS]
    engine = engine_of(model_of(family), kernels)
    assert engine.kernels == kernels
    return engine.run(proteins, ANSWERS[answer])


def differences(family: str) -> dict[str, float]:
    """Return the largest difference that the kernels make, for each kind of answer."""
    found: dict[str, float] = {}
    for name in ANSWERS:
        with_kernels = answers(family, name, ATTENTION_KERNEL)
        without = answers(family, name, NONE)
        pairs = zip(with_kernels, without, strict=True)
        found[name] = max(float(np.abs(a - b).max()) for a, b in pairs)
    return found


def kernels_of_a_faulty_machine() -> frozenset[str]:
    """Return the kernels that an engine uses if none of them can be launched."""
    fault = mock.Mock(side_effect=RuntimeError("no kernel image"))
    with mock.patch.object(attention_launch, "forward", fault):
        return engine_of(model_of("esm2"), ATTENTION_KERNEL).kernels


def summary(folder: Path, command: str, mode: str) -> dict[str, Any]:
    """Run a command as on a GPU where ``auto`` selects the attention kernels; return its summary.

    Args:
        folder: folder for the model, the input and the output.
        command: name in ``COMMANDS``.
        mode: value of ``inference.kernels``.
    """
    model_of("esm2").save_pretrained(folder / "model")
    (folder / "proteins.csv").write_text(PROTEINS)
    run_file = folder / "run.yaml"
    run_file.write_text("name: run\n")
    output = folder / f"{command}-{mode}.parquet"
    fields = {
        "runs": folder / "runs",
        "train.precision": "fp32",
        "model.max_residues": LONGEST,
        "inference.model": folder / "model",
        "inference.input": json.dumps([str(folder / "proteins.csv")]),
        "inference.output": output,
        "inference.kernels": mode,
    }
    config = load_config(run_file, [f"{name}={value}" for name, value in fields.items()])

    def as_on_a_gpu(mode: str, *rest: Any, **options: Any) -> frozenset[str]:
        return NONE if mode == "off" else ATTENTION_KERNEL

    with processes() as here, mock.patch.object(engine_module, "selected", as_on_a_gpu):
        COMMANDS[command](config, here)
    [found] = [path for path in folder.glob(f"{command}-{mode}*.json")]
    summary: dict[str, Any] = json.loads(found.read_text())
    return summary
