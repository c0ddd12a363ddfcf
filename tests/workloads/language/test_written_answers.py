"""Recognition of an answer and of its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer

from seqlm.language.objective import _answers, _ends
from seqlm.language.template import Template
from seqlm.runs.run_file import load_config
from seqlm.training.command_line import Stopped
from seqlm.training.processes import processes


def test_a_response_that_does_not_come_to_the_mark_is_no_answer(
    run_file: Path, tiny_qwen: Path
) -> None:
    chat = load_config(run_file).chat
    assert chat is not None and chat.answer_follows == "</think>"
    template = Template(chat, tiny_qwen)
    assert template.answer("<think>It hurts.</think> Examine it. ") == "Examine it."
    assert template.answer("<think>It hurts, and hurts, and") == ""
    whole = Template(replace(chat, answer_follows=None), tiny_qwen)
    assert whole.answer(" Examine it. ") == "Examine it."


@pytest.mark.parametrize(("named", "others"), [(None, []), (9, [9]), ([9, 8], [8, 9])])
def test_answers_end_where_training_and_model_say(
    tiny_qwen: Path, named: Any, others: list[int]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen)
    model: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=named))
    assert _ends(model, tokenizer) == sorted([tokenizer.eos_token_id, *others])


def test_a_run_that_is_stopped_answers_no_further_questions(
    run_file: Path, tiny_qwen: Path
) -> None:
    chat = load_config(run_file).chat
    assert chat is not None
    asked: list[int] = []
    with pytest.raises(Stopped), processes() as here:

        def generate(*, input_ids: Tensor, **_: Any) -> Tensor:
            asked.append(len(input_ids))
            here.stop.received = len(asked) == 2
            return torch.cat([input_ids, torch.ones((len(input_ids), 1), dtype=torch.int64)], dim=1)

        model: Any = SimpleNamespace(
            generation_config=SimpleNamespace(eos_token_id=None), generate=generate
        )
        _answers(
            model,
            Template(chat, tiny_qwen),
            list("abcdefg"),
            replace(chat, questions_at_once=2),
            here,
        )
    assert asked == [2, 2]
