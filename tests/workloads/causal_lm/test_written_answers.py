"""What counts as an answer, where it ends, and in which type a model is kept that is only scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.workloads.esm2.training_runs import train_here
from workloads.causal_lm.objective import CausalLM
from workloads.causal_lm.template import Template
from workloads.causal_lm.written_answers import _ends
from workloads.esm2.config import load_config
from workloads.esm2.evaluate import main as evaluate


def test_a_response_that_does_not_come_to_the_mark_is_no_answer(run_file: Path, tiny_qwen: Path) -> None:
    chat = load_config(run_file).chat
    assert chat is not None and chat.answer_follows == "</think>"
    template = Template(chat, tiny_qwen)
    assert template.answer("<think>It hurts.</think> Examine it. ") == "Examine it."
    assert template.answer("<think>It hurts, and hurts, and") == ""
    whole = Template(replace(chat, answer_follows=None), tiny_qwen)
    assert whole.answer(" Examine it. ") == "Examine it."


@pytest.mark.parametrize(("named", "others"), [(None, []), (9, [9]), ([9, 8], [8, 9])])
def test_answers_end_where_training_and_model_say(tiny_qwen: Path, named: Any, others: list[int]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen)
    model: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=named))
    assert _ends(model, tokenizer) == sorted([tokenizer.eos_token_id, *others])


def test_a_model_that_is_scored_is_kept_in_the_type_of_the_arithmetic(
    run_file: Path, tiny_qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = CausalLM.evaluate
    kept: dict[str, torch.Tensor] = {}

    def watched(self: CausalLM, model: torch.nn.Module, *arguments: Any) -> Any:
        kept.update(model.named_parameters())
        return scored(self, model, *arguments)

    monkeypatch.setattr(CausalLM, "evaluate", watched)
    settings = ["name=scored", f"inference.model={tiny_qwen}", "train.precision=bf16", "chat.questions=0"]
    train_here(run_file, *settings, stage=evaluate)
    assert not any(parameter.requires_grad for parameter in kept.values()), "autocast would keep a copy"
    wide = {name for name, parameter in kept.items() if parameter.dtype != torch.bfloat16}
    assert wide == {name for name in kept if "norm" in name}
