"""What a run file with ``chat:`` must be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..esm2.strict_yaml import shown

if TYPE_CHECKING:  # which reads the rules
    from ..esm2.config import RunConfig

FIELD = re.compile(r"\{(question|reasoning|answer)\}")
"""Of ``chat.prompt`` and ``chat.response``."""


def chat_rules(config: RunConfig) -> list[tuple[bool, str]]:
    """Whether each rule holds, and what to say if it does not."""
    chat, train = config.chat, config.train
    assert chat is not None
    mark = chat.answer_follows
    in_prompt = set(FIELD.findall(chat.prompt)) if chat.prompt is not None else {"question"}
    in_response = set(FIELD.findall(chat.response))
    return [
        (
            config.task is None,
            "chat, task: a run trains for one of them; leave the other section out",
        ),
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
            f"chat.prompt: got {shown(chat.prompt)}; it must have {{question}}, and neither of the others",
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
