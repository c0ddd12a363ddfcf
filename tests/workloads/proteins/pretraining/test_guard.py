"""A continued pre-training scores general proteins, warns if their loss rises, and ends if it shall."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqlm.commands.kinds import prepare
from seqlm.runs.run_file import load_config
from seqlm.training.command_line import RunError
from tests.workloads.training.training_runs import lines, train_here

TOO_FAST = ("optim.lr=0.5", "optim.warmup_steps=0", "train.max_steps=4", "train.eval_every_steps=2")


def test_a_risen_loss_ends_the_run_which_continues_from_its_first_score(
    run_file: Path, prepared: Path, tmp_path: Path
) -> None:
    data = (f"data.path={tmp_path / 'mine'}", f"data.source=[{prepared.parent / 'proteins.fasta'}]")
    guard = (*TOO_FAST, *data, f"guard.path={tmp_path / 'general'}", "train.eval_packs=1")
    prepare(load_config(run_file, guard))
    with pytest.raises(
        RunError, match=r"the loss on general proteins rose by .*; step 2 is saved in"
    ):
        train_here(run_file, *guard, "guard.stop=true")
    train_here(run_file, *guard)
    run_dir = tmp_path / "runs" / "run"
    general = [line for line in lines(run_dir, "eval") if line["split"] == "general"]
    assert [line["step"] for line in general] == [0, 2, 4]
    first = general[0]["eval_loss"]
    for line in general:
        assert line["loss_increase"] == pytest.approx(line["eval_loss"] / first - 1)
    assert general[1]["loss_increase"] > 0.02
    warned = [line["step"] for line in lines(run_dir, "event") if "warning" in line["event"]]
    assert warned == [line["step"] for line in general if line["loss_increase"] > 0.02]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["model.init_from=null"],
            "guard: general proteins are scored in a continued pre-training",
        ),
        (["guard.max_increase=0"], "guard.max_increase: got 0.0; allowed above 0"),
    ],
)
def test_settings_without_a_sense_are_refused(
    run_file: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(run_file, ["guard.stop=true", *overrides])
