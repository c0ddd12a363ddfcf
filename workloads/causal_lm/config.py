"""The section ``chat:`` of a run file. Standard library alone: ``workloads/esm2/config.py`` reads it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """Questions and answers to fine-tune on; ``model.init_from`` names the model, ``data.path`` the result.

    A hash of the question decides on its split, with ``data.validation_fraction`` and ``data.test_fraction``.
    """

    table: tuple[str, ...] = ("sample",)
    """JSON, JSON Lines, CSV, TSV or Parquet files (all but the last also .gz), https:// or s3:// addresses,
    files of the hub as ``hf://datasets/<owner>/<name>@<revision>/<file>``, or ``sample`` (embedded)."""
    question_column: str = "question"
    reasoning_column: str | None = None
    """What comes before the answer, for a ``response`` with {reasoning}."""
    answer_column: str = "answer"
    prompt: str | None = None
    """What the model reads, with {question}, special tokens as the tokenizer writes them; null is the chat
    template of the model's tokenizer. Nothing of it is trained on."""
    response: str = "{answer}"
    """What it is to write, with {answer} and {reasoning}; a token that ends it follows."""
    answer_follows: str | None = None
    """Mark in ``response`` after which the answer begins, such as ``</think>``; ROUGE then leaves out what
    stands before. What a model writes without coming to it is no answer."""
    max_tokens: int = 1024
    """Of prompt and response together; longer conversations are left out, and counted."""
    questions: int = 32
    """Held-out questions that the tuned model and the one it started from answer at the end; 0: none."""
    max_new_tokens: int = 256
    """Of each of these answers."""
    questions_at_once: int = 16
    """Answered in one batch on each device."""
