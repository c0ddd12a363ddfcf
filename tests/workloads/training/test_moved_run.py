"""A run that make migrate has copied to another cluster continues there bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tools.migrate.moving import NEEDS_RSYNC, local_head, tree
from tests.workloads.training.training_runs import lines, losses, train_here
from tools.migrate.trees import compare_tree, copy_tree

STEPS = 8


@NEEDS_RSYNC
@pytest.mark.long
def test_a_copied_run_continues_bit_for_bit(run_file: Path, tmp_path: Path) -> None:
    old, new = run_file.parent / "runs", tmp_path / "new" / "runs"
    new.mkdir(parents=True)
    steps = f"train.max_steps={STEPS}"
    train_here(run_file, "name=whole", steps)
    train_here(run_file, f"train.save_every_steps={STEPS // 2}", steps)
    # As if it had ended early.
    shutil.rmtree(old / "run" / "checkpoints" / f"step-{STEPS:08d}")
    shutil.rmtree(old / "run" / "model")
    head = local_head(tmp_path, old)
    copy_tree(head, tree(new), print)
    assert compare_tree(head, tree(new), print, contents=True).num_different == 0
    train_here(run_file, f"runs={new}", steps)
    resumed = [line["step"] for line in lines(new / "run", "event") if line["event"] == "resumed"]
    assert resumed == [STEPS // 2]
    assert losses(new / "run") == losses(old / "whole")
    weights = [path / "model" / "model.safetensors" for path in (new / "run", old / "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
