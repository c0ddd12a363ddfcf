"""A kernel that fails on one process of two is used on neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

from seqlm.commands import kinds
from seqlm.proteins.model.packed_model import PackedModel
from seqlm.runs.run_file import load_config
from seqlm.training.kernels import ATTENTION, KERNELS_FIELD
from seqlm.training.processes import processes
from seqlm.training.trainer import Trainer
from tests.workloads.proteins.tiny_models import save_tiny_model, tiny_config
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.training_runs import write_run_file

FAILING_RANK = 1


def test_all_processes_use_torchs_attention(prepared: Path, tmp_path: Path) -> None:
    """Nothing is patched on the second process: on a CPU, Triton finds no driver."""
    config: Any = tiny_config(layers=1, width=32)
    config.num_attention_heads = 2  # heads of 16, for which there are kernels
    model = save_tiny_model(tmp_path / "model", config)
    run_file = write_run_file(tmp_path, prepared, model)
    log = tmp_path / "log"
    with forked(2, make_a_step, run_file, tmp_path, log=log) as started:
        assert started.ends(200) == [0, 0], started.output
        printed = started.output
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [one["offered"] for one in found] == [True, True]
    assert [one["environment"] for one in found] == ["none", "none"]
    assert found[0]["weights"] == found[1]["weights"]
    assert printed.count("warning: kernel attention") == 1
    assert "torch's own kernels compute in its place" in printed


def make_a_step(run_file: Path, folder: Path) -> None:
    """Make one optimizer step with the attention kernel, and record what this process has computed with."""
    config = load_config(run_file)
    with processes() as here:
        found: dict[str, str] = {}
        fine = mock.patch.object(PackedModel, "kernel_problems", lambda *arguments: found)
        if here.rank == FAILING_RANK:
            trainer = Trainer(kinds.kind_of(config).objective(config), here, frozenset({ATTENTION}))
        else:
            with fine:
                trainer = Trainer(
                    kinds.kind_of(config).objective(config), here, frozenset({ATTENTION})
                )
        trainer.step(next(trainer.steps()))
        trainer.settle()
        weights = [float(one.detach().sum()) for one in trainer.model.parameters()]
        model: Any = getattr(trainer.model, "module", trainer.model)
        record = {
            "offered": ATTENTION in model.kernels,
            "environment": trainer.environment()[KERNELS_FIELD],
            "weights": weights,
        }
        (folder / f"{here.rank}.json").write_text(json.dumps(record))
