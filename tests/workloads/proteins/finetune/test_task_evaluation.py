"""``make evaluate`` of runs with a task: the scores of the run's end, of its model and of its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from seqlm.commands.evaluate import main as evaluate
from seqlm.proteins.model.pretrained import load_model
from tests.workloads.proteins.finetune.labelled_proteins import write_task_file
from tests.workloads.training.training_runs import train_here

BOTH_FAMILIES = {"test_model_and_checkpoint_score_as_at_the_end_of_the_run"}

LORA = "lora.lr=1e-2"


@pytest.mark.long
@pytest.mark.parametrize(("kind", "settings"), [("regression", LORA), ("residue", "")])
def test_model_and_checkpoint_score_as_at_the_end_of_the_run(
    kind: str, settings: str, tiny_model: Path, tmp_path: Path
) -> None:
    """A regression's head is in the table's units in one of them, and not in the other."""
    run_file = write_task_file(tmp_path, tiny_model, kind)
    train_here(run_file, *settings.split())
    run_dir = tmp_path / "runs/run"
    results = json.loads((run_dir / "all_results.json").read_text())
    for split, prefix in (("test", "test_"), ("validation", "eval_")):
        for model in ("null", run_dir / "checkpoints/step-00000008"):
            overrides = [*settings.split(), f"evaluate.split={split}", f"inference.model={model}"]
            before = set(run_dir.iterdir())
            train_here(run_file, *overrides, stage=evaluate)
            (written,) = set(run_dir.iterdir()) - before
            scores = json.loads(written.read_text())
            assert written.name.startswith(f"evaluation-{split}") and scores["task"] == kind
            if kind == "residue":
                assert scores["scored_residues"] > scores["unlabelled_residues"] > 0
                assert scores["masked_residues"] == 0
            found = {name: value for name, value in scores.items() if name.startswith("eval_")}
            del found["eval_runtime"]
            assert len(found) >= 6
            for name, value in found.items():
                expected = results[name.replace("eval_", prefix, 1)]
                assert value == pytest.approx(expected, rel=1e-4), (written.name, name)
    # Predictions need no table, and so cannot know the units.
    if kind == "regression":
        with pytest.raises(
            ValueError, match="checkpoint of a regression, which does not hold the units"
        ):
            load_model(str(run_dir / "checkpoints/step-00000008"))
    else:
        names = (run_dir / "checkpoints/step-00000008", run_dir / "model")
        one, other = (load_model(str(name)).state_dict() for name in names)
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_what_cannot_be_scored_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    run_file = write_task_file(tmp_path, tiny_model, "binary")
    run_dir = tmp_path / "runs/run"
    with pytest.raises(
        ValueError, match=r"runs/run/model does not exist: .*lora\.merge.* name a model"
    ):
        train_here(run_file, LORA, stage=evaluate)
    train_here(run_file, LORA, "train.max_steps=3")
    with pytest.raises(
        ValueError, match="has not been fine-tuned for this task, whose outputs are membrane"
    ):
        train_here(run_file, f"inference.model={tiny_model}", stage=evaluate)
    checkpoint = f"inference.model={run_dir}/checkpoints/step-00000003"
    with pytest.raises(
        ValueError, match=r"lora\.rank: checkpoint 16, now 4\nscore a checkpoint with"
    ):
        train_here(run_file, checkpoint, "lora.rank=4", stage=evaluate)
