"""The same batches and losses in every mode, with any number of processes, and what a run leaves behind."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM

from tests.workloads.training.forked_processes import (
    recorded_packs,
    train_and_record_all,
    train_in_turn,
)
from tests.workloads.training.training_runs import (
    NUM_STEPS,
    PACKS_PER_STEP,
    largest_difference,
    losses,
    write_run_file,
)

BOTH_FAMILIES = True

pytestmark = pytest.mark.long

TOLERANCE = {"adamw": 1e-5, "muon": 1e-4}
"""Largest difference of a step's loss to that of the same optimizer under DDP with one process."""
RUNS = {
    "ddp-1-adamw": (1, "parallel.mode=ddp"),
    "ddp-1-muon": (1, "parallel.mode=ddp"),
    "fsdp-1-adamw": (1, "parallel.mode=fsdp"),
    "ddp-2-adamw": (2, "parallel.mode=ddp"),
    "ddp-2-muon": (2, "parallel.mode=ddp"),
    "fsdp-2-adamw": (2, "parallel.mode=fsdp"),
    "fsdp-2-muon": (2, "parallel.mode=fsdp"),
    "fsdp-2-recomputing-adamw": (2, "parallel.mode=fsdp train.activation_checkpointing=true"),
    # One of three processes idles in the second round of a step.
    "ddp-3-adamw": (3, "parallel.mode=ddp"),
    "hsdp-4-adamw": (4, "parallel.mode=fsdp parallel.shard_size=2"),
    "hsdp-4-muon": (4, "parallel.mode=fsdp parallel.shard_size=2"),
}
"""Number of processes and settings; the optimizer comes last in the name."""
OF_BATCHES = {"fsdp-1-adamw", "ddp-2-muon", "ddp-3-adamw", "hsdp-4-adamw", "hsdp-4-muon"}
"""They show how batches go to processes, which is the same for all families: ESM-2 alone is trained so."""


@pytest.fixture(scope="module")
def wanted(family: str) -> list[str]:
    """Names of the runs of a family."""
    return [name for name in RUNS if family == "esm2" or name not in OF_BATCHES]


@pytest.fixture(scope="module")
def runs(
    prepared: Path, tiny_model: Path, wanted: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of all runs; those of one process are trained in this one."""
    folder = tmp_path_factory.mktemp("modes")
    run_file = write_run_file(folder, prepared, tiny_model)
    overrides: dict[int, list[str]] = defaultdict(list)
    for name in wanted:
        processes, settings = RUNS[name]
        overrides[processes].append(f"name={name} optim.name={name.rpartition('-')[2]} {settings}")
    train_and_record_all(run_file, overrides.pop(1))
    train_in_turn(run_file, overrides)
    return folder / "runs"


@pytest.mark.parametrize("optimizer", TOLERANCE)
def test_losses_are_the_same_in_every_mode(runs: Path, wanted: list[str], optimizer: str) -> None:
    alone = losses(runs / f"ddp-1-{optimizer}")
    assert alone[NUM_STEPS] < alone[1] - 0.3, "there must be something learnt to compare"
    for name in wanted:
        if name.endswith(optimizer):
            assert largest_difference(alone, losses(runs / name)) < TOLERANCE[optimizer], name


def test_batches_are_the_same_in_every_mode(runs: Path, wanted: list[str]) -> None:
    packs = {
        name: recorded_packs(
            runs / name, RUNS[name][0], packs_per_step=PACKS_PER_STEP, num_steps=NUM_STEPS
        )
        for name in wanted
    }
    alone = packs["ddp-1-adamw"]
    assert len({json.dumps(pack) for pack in alone}) == NUM_STEPS * PACKS_PER_STEP, (
        "no two packs are alike"
    )
    for name, others in packs.items():
        assert others == alone, name


def test_results_and_model_of_a_run(runs: Path, family: str) -> None:
    run_dir = runs / "ddp-2-adamw"
    results = json.loads((run_dir / "all_results.json").read_text())
    guidance = {
        "epoch",
        "eval_accuracy",
        "eval_loss",
        "eval_runtime",
        "eval_samples",
        "eval_samples_per_second",
        "perplexity",
        "train_loss",
        "train_runtime",
        "train_samples",
        "train_samples_per_second",
        "train_steps_per_second",
        "total_flos",
    }
    ours = {"train_residues", "train_residues_per_second", "fill", "mfu", "peak_memory_bytes"}
    assert guidance | ours <= results.keys()
    assert results["perplexity"] == pytest.approx(math.exp(results["eval_loss"]))
    # ESMC starts with 64 columns, ESM-2 with 33.
    assert (
        results["perplexity"] < results["unigram_perplexity"] * {"esm2": 1.5, "esmc": 2.5}[family]
    )
    assert 0.8 < results["fill"] <= 1 and results["world_size"] == 2
    model = AutoModelForMaskedLM.from_pretrained(run_dir / "model")
    assert all(torch.isfinite(p).all() for p in model.parameters())
