"""Section ``chat:`` of a run file, and its rules. ``workloads/seqlm/runs/run_file.py`` reads it."""

import re
from dataclasses import dataclass

from seqlm.training.config import RunConfig
from seqlm.training.config_rules import Rule
from seqlm.training.strict_yaml import shown

FIELD = re.compile(r"\{(question|reasoning|answer)\}")
"""Placeholder of ``chat.prompt`` and ``chat.response``."""


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """Questions and answers for fine-tuning; ``model.init_from`` names the model, ``data.path`` the result.

    A hash of the question decides on its split, with ``data.validation_fraction`` and ``data.test_fraction``.
    """

    table: tuple[str, ...] = ("sample",)
    """JSON, JSON Lines, CSV, TSV or Parquet files (all but the last also .gz), https:// or s3:// addresses,
    files of the hub as ``hf://datasets/<owner>/<name>@<revision>/<file>``, or ``sample`` (embedded)."""
    question_column: str = "question"
    reasoning_column: str | None = None
    """Column of the text before the answer, for a ``response`` with {reasoning}."""
    answer_column: str = "answer"
    prompt: str | None = None
    """Input of the model, with {question} and special tokens as the tokenizer writes them; null is the chat
    template of the model's tokenizer. The loss does not cover it."""
    response: str = "{answer}"
    """Expected output, with {answer} and {reasoning}; an end token follows."""
    answer_follows: str | None = None
    """Mark in ``response`` after which the answer begins, such as ``</think>``; ROUGE then leaves out the
    text before it. Output without the mark is no answer."""
    max_tokens: int = 1024
    """Tokens of prompt and response together; longer conversations are left out and counted."""
    questions: int = 32
    """Held-out questions that the tuned and the original model answer at the end; 0 is none."""
    max_new_tokens: int = 256
    """Tokens of each of these answers."""
    questions_at_once: int = 16
    """Questions in one batch on each device."""


def chat_rules(chat: ChatConfig, config: RunConfig) -> list[Rule]:
    """Return the rules of a run with ``chat:``.

    Args:
        chat: section ``chat:`` of the run file.
        config: other sections.
    """
    train = config.train
    mark = chat.answer_follows
    in_prompt = set(FIELD.findall(chat.prompt)) if chat.prompt is not None else {"question"}
    in_response = set(FIELD.findall(chat.response))
    return [
        (
            config.model.init_from is not None,
            "model.init_from: got null with chat:, which starts from a model; give a folder, a hub id such "
            "as owner/name@revision, or sample",
        ),
        (
            not config.data.members,
            f"data.members: got {shown(list(config.data.members))} with chat:, which has no proteins",
        ),
        (bool(chat.table), "chat.table: got an empty list; name at least one file"),
        (
            in_prompt == {"question"},
            f"chat.prompt: got {shown(chat.prompt)}; it must have {{question}} and no other field",
        ),
        (
            "answer" in in_response and "question" not in in_response,
            f"chat.response: got {shown(chat.response)}; it must have {{answer}}, and not {{question}}",
        ),
        (
            ("reasoning" in in_response) == (chat.reasoning_column is not None),
            f"chat.reasoning_column: got {shown(chat.reasoning_column)} with the response "
            f"{shown(chat.response)}; give both the column and {{reasoning}}, or neither",
        ),
        (
            not mark or (mark in chat.response and "{answer}" in chat.response.rpartition(mark)[2]),
            f"chat.answer_follows: got {shown(mark)} with the response {shown(chat.response)}; it must stand "
            "there before {answer}",
        ),
        (
            2 <= chat.max_tokens <= train.tokens_per_pack,
            f"chat.max_tokens: got {chat.max_tokens}; allowed 2 to train.tokens_per_pack "
            f"({train.tokens_per_pack}), since a pack must hold the longest conversation",
        ),
    ]
