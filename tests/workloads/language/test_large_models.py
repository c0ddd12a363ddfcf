"""Features for large models, tested on a small one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from seqlm.commands.evaluate import main as evaluate
from seqlm.language.objective import CausalLM
from seqlm.runs.run_file import load_config
from seqlm.training.processes import Processes, processes
from seqlm.training.step import start
from seqlm.training.trainer import Trainer
from tests.workloads.training.training_runs import train_here


def test_a_model_that_is_scored_is_kept_in_the_type_of_the_arithmetic(
    run_file: Path, tiny_qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = CausalLM.evaluate
    kept: dict[str, torch.Tensor] = {}

    def watched(self: CausalLM, model: torch.nn.Module, *arguments: Any) -> Any:
        kept.update(model.named_parameters())
        return scored(self, model, *arguments)

    monkeypatch.setattr(CausalLM, "evaluate", watched)
    settings = [
        "name=scored",
        f"inference.model={tiny_qwen}",
        "train.precision=bf16",
        "chat.questions=0",
    ]
    train_here(run_file, *settings, stage=evaluate)
    assert not any(parameter.requires_grad for parameter in kept.values()), (
        "autocast would keep a copy"
    )
    wide = {name for name, parameter in kept.items() if parameter.dtype != torch.bfloat16}
    assert wide == {name for name in kept if "norm" in name}


def test_processes_meet_on_the_host_before_weights_are_sent(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reads tens of gigabytes, for which NCCL's collectives would not wait."""
    order: list[str] = []
    meet = Processes.sum_on_host
    send = start.parallelize

    def watched(what: str, function: Any) -> Any:
        return lambda *arguments: order.append(what) or function(*arguments)

    monkeypatch.setattr(CausalLM, "weights", watched("read", CausalLM.weights))
    monkeypatch.setattr(Processes, "sum_on_host", watched("meet", meet))
    monkeypatch.setattr(start, "parallelize", watched("send", send))
    with processes() as here:
        Trainer(CausalLM(load_config(run_file, ["name=met"])), here)
    assert order == ["read", "meet", "send"]
