"""A step that is not finite changes nothing, and is reported with its own number one step late."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import load_config
from seqlm.training.checkpoint import Checkpointer
from seqlm.training.health.faults import NonFiniteLossError
from seqlm.training.processes import processes
from seqlm.training.trainer import Trainer
from tests.workloads.training.training_runs import lines, losses, train_here

BOTH_FAMILIES = {"test_the_default_family_is_not_part_of_the_identity"}

Spoil = Callable[..., None]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Multiply the loss of a step's last pack, also when it is repeated; steps have four."""
    plain = Pretraining.loss_sum

    def from_now_on(*, step: int, factor: float) -> None:
        packs = 0
        tokens: Tensor | None = None

        def spoilt(objective: Pretraining, model: nn.Module, pack: Any) -> Tensor:
            nonlocal packs, tokens
            packs += 1
            if packs == 4 * step:
                tokens = pack.tokens.clone()
            is_spoilt = tokens is not None and torch.equal(tokens, pack.tokens)
            return plain(objective, model, pack) * (factor if is_spoilt else 1)

        monkeypatch.setattr(Pretraining, "loss_sum", spoilt)

    return from_now_on


def state_of(trainer: Trainer) -> list[Tensor]:
    states = [state.values() for each in trainer.optimizers for state in each.state.values()]
    return [
        x.detach().clone()
        for x in (*trainer.model.parameters(), *(x for state in states for x in state))
    ]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(
    ("factor", "figures"),
    [
        (float("nan"), "loss nan, gradient norm nan"),
        (float("inf"), "loss inf, gradient norm nan"),
        (1e36, r"loss [\d.]+e\+?3\d, gradient norm inf"),
    ],
)
def test_a_step_that_is_not_finite_changes_nothing(
    run_file: Path, spoil: Spoil, optimizer: str, factor: float, figures: str
) -> None:
    spoil(step=3, factor=factor)
    with processes() as here:
        trainer = Trainer(Pretraining(load_config(run_file, [f"optim.name={optimizer}"])), here)
        first, second, third, fourth = islice(trainer.steps(), 4)
        trainer.step(first)
        trainer.step(second)
        result = trainer.settle()
        assert result is not None and trainer.settle() is result
        before = state_of(trainer)
        loss_sum = trainer.progress.loss_sum
        trainer.step(third)  # not read yet
        with pytest.raises(
            NonFiniteLossError, match=rf"^step 3: {figures} at .*the weights were not touched"
        ):
            trainer.step(fourth)
        assert all(torch.equal(a, b) for a, b in zip(before, state_of(trainer), strict=True))
        assert trainer.progress.loss_sum == loss_sum
        with pytest.raises(NonFiniteLossError):  # the fourth step's own figures are finite
            trainer.settle()


def test_losses_are_read_one_step_late(run_file: Path) -> None:
    with processes() as here:
        trainer = Trainer(Pretraining(load_config(run_file, [])), here)
        assert trainer.settle() is None
        sums = []
        for packs in islice(trainer.steps(), 4):
            trainer.step(packs)
            sums.append(trainer.progress.loss_sum)
        assert trainer.progress.step == 4 and sums[0] == 0 < sums[1] < sums[2] < sums[3]
        last = trainer.settle()
    assert last is not None and trainer.progress.loss_sum == sums[3] + last.loss


@pytest.mark.parametrize("step", [6, 7])
def test_no_checkpoint_of_a_step_that_is_not_finite(
    run_file: Path, spoil: Spoil, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 6 would be saved at once. Step 7 is not logged: its figures are read when step 8 is launched."""
    saved = []
    save = Checkpointer.save

    def noted(checkpointer: Checkpointer, step: int, *arguments: Any) -> None:
        saved.append(step)
        save(checkpointer, step, *arguments)

    monkeypatch.setattr(Checkpointer, "save", noted)
    spoil(step=step, factor=float("nan"))
    with pytest.raises(NonFiniteLossError, match=f"^step {step}: loss nan, gradient norm nan"):
        train_here(
            run_file, "train.save_every_steps=3", "train.log_every_steps=10", "train.max_steps=12"
        )
    assert saved == [3, 6][: step - 5]
    run_dir = run_file.parent / "runs" / "run"
    written = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert written == [f"step-{step:08d}" for step in saved]
    assert list(losses(run_dir)) == [1]


@pytest.mark.long
def test_logged_figures_are_those_of_their_step(run_file: Path) -> None:
    """However seldom figures are read, a logged step has its own; so have the sums in a checkpoint."""
    runs = run_file.parent / "runs"
    for name, every in (("often", 1), ("seldom", 5)):
        train_here(run_file, f"name={name}", f"train.log_every_steps={every}", "train.max_steps=10")
    often, seldom = (
        {line["step"]: line for line in lines(runs / name, "train")} for name in ("often", "seldom")
    )
    assert list(seldom) == [1, 5, 10]
    for step, line in seldom.items():
        for name in ("loss", "grad_norm", "learning_rate", "residues"):
            assert line[name] == often[step][name]


def test_the_default_family_is_not_part_of_the_identity(run_file: Path, family: str) -> None:
    """Checkpoints of versions before ``model.family`` can be resumed."""
    with processes() as here:
        identity = Pretraining(load_config(run_file, [])).identity(here)
    assert {name for name in identity if name.startswith("model.") and name != "model.family"} == {
        "model.init_from",
        "model.mask_fraction",
        "model.max_residues",
        "model.size",
    }
    assert identity.get("model.family") == {"esm2": None, "esmc": "esmc"}[family]
