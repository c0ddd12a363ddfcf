"""What counts as an answer, and where it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from workloads.causal_lm.template import Template
from workloads.causal_lm.written_answers import _ends
from workloads.esm2.config import load_config


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
