"""Section ``chat:`` of a run file, and its rules. ``workloads/seqlm/runs/run_file.py`` reads it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from seqlm.training.config import RunConfig
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


def chat_violations(chat: ChatConfig, config: RunConfig) -> Iterator[str]:
    """Yield a message for each broken rule of a run with ``chat:``."""
    if config.model.init_from is None:
        yield (
            "model.init_from: got null with chat:, which starts from a model; give a folder, a hub id such "
            "as owner/name@revision, or sample"
        )
    if config.data.members:
        yield f"data.members: got {shown(list(config.data.members))} with chat:, which has no proteins"
    if not chat.table:
        yield "chat.table: got an empty list; name at least one file"
    in_prompt = set(FIELD.findall(chat.prompt)) if chat.prompt is not None else {"question"}
    if in_prompt != {"question"}:
        yield f"chat.prompt: got {shown(chat.prompt)}; it must have {{question}} and no other field"
    in_response = set(FIELD.findall(chat.response))
    if "answer" not in in_response or "question" in in_response:
        yield f"chat.response: got {shown(chat.response)}; it must have {{answer}}, and not {{question}}"
    if ("reasoning" in in_response) != (chat.reasoning_column is not None):
        yield (
            f"chat.reasoning_column: got {shown(chat.reasoning_column)} with the response "
            f"{shown(chat.response)}; give both the column and {{reasoning}}, or neither"
        )
    mark = chat.answer_follows
    if mark and (mark not in chat.response or "{answer}" not in chat.response.rpartition(mark)[2]):
        yield (
            f"chat.answer_follows: got {shown(mark)} with the response {shown(chat.response)}; it must stand "
            "there before {answer}"
        )
    tokens_per_pack = config.train.tokens_per_pack
    if not 2 <= chat.max_tokens <= tokens_per_pack:
        yield (
            f"chat.max_tokens: got {chat.max_tokens}; allowed 2 to train.tokens_per_pack "
            f"({tokens_per_pack}), since a pack must hold the longest conversation"
        )
