"""Engine and commands of inference with the attention kernels, run in the interpreter's process."""

from __future__ import annotations

import json
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
from seqlm.proteins.model.kernels import attention_launch
from seqlm.runs.run_file import load_config
from seqlm.training.processes import processes
from tests.workloads.proteins.model.kernels.model_cases import (
    ATTENTION_KERNEL,
    NONE,
    config_of,
    model_of,
)
from tests.workloads.proteins.tiny_models import save_tiny_model

LONGEST = 40
LENGTHS = (1, 7, 40, 55)
"""Lengths of proteins, one of them above ``LONGEST``: it is read in windows."""
ANSWERS = {
    "embedding": EMBEDDING,
    "residues": RESIDUE_EMBEDDINGS,
    "logits": MASKED_LOGITS,
}
PROTEINS = "id,sequence\nP1,MKTAYIAKQR\nP2,MKVLAGGWTNDE\n"


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


def summary(folder: Path, mode: str) -> dict[str, Any]:
    """Embed proteins as on a GPU where ``auto`` selects the attention kernels; return the output's summary.

    Args:
        folder: folder for the model, the input and the output.
        mode: value of ``inference.kernels``.
    """
    save_tiny_model(folder / "model", config_of("esm2"))
    (folder / "proteins.csv").write_text(PROTEINS)
    run_file = folder / "run.yaml"
    run_file.write_text("name: run\n")
    output = folder / f"{mode}.parquet"
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
        embed(config, here)
    written: dict[str, Any] = json.loads((folder / f"{output.name}.json").read_text())
    return written
