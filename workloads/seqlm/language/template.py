"""Prompts and expected responses, as texts and as tokens."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from seqlm.training.checksums import unreadable
from seqlm.training.data.model_folder import check_files
from seqlm.training.strict_yaml import shown

from .bounds import memory_limit, time_limit
from .config import FIELD, ChatConfig
from .table import Conversation

TEMPLATE_SECONDS = 10.0
"""Time in which the chat template of a model renders its first prompt. It takes milliseconds."""
TEMPLATE_BYTES = 4 << 30
"""Memory that the prompts may take. A hundred thousand of 4 kB take a tenth of it."""
SECONDS_PER_PROMPT = 0.01
"""Further time for each prompt."""


class Template:
    """Converter of conversations to texts and tokens.

    Prompt and response are converted to tokens separately, so that the prompt of a question is the same in
    training and in generation.

    Args:
        chat: section ``chat:`` of the run file.
        folder: folder of the model, with its tokenizer.

    Raises:
        ValueError: if the tokenizer has no end-of-sequence token, or no chat template where one is needed.
    """

    def __init__(self, chat: ChatConfig, folder: Path) -> None:
        self._chat = chat
        self._folder = folder
        self.tokenizer: PreTrainedTokenizerBase = _tokenizer(folder)
        if self.tokenizer.eos_token_id is None:
            raise ValueError(
                f"model.init_from: the tokenizer of {folder} has no end-of-sequence token, without which no "
                "answer ends; set eos_token in its tokenizer_config.json"
            )
        if chat.prompt is None and not self.tokenizer.chat_template:
            raise ValueError(
                f"chat.prompt: got null, but the tokenizer of {folder} has no chat template; give the text "
                'with {question}, such as "Question: {question}\\nAnswer: "'
            )

    def prompts(self, questions: Sequence[str]) -> list[str]:
        """Return the prompt of each question."""
        if self._chat.prompt is not None:
            return [_filled(self._chat.prompt, {"question": question}) for question in questions]
        turns = [[{"role": "user", "content": question}] for question in questions]
        allowed = TEMPLATE_SECONDS + SECONDS_PER_PROMPT * len(turns)
        try:
            with time_limit(allowed), memory_limit(TEMPLATE_BYTES):
                prompts = self.tokenizer.apply_chat_template(
                    turns, add_generation_prompt=True, tokenize=False
                )
        except Exception as error:  # a template is a program, and raises nearly anything
            if isinstance(error, TimeoutError):
                problem = f"did not end within {allowed:.0f} s"
            else:
                problem = f"fails ({type(error).__name__}: {shown(str(error))})"
            raise ValueError(
                f"chat.prompt: got null, but the chat template of {self._folder} {problem}; give the text "
                'with {question}, such as "Question: {question}\\nAnswer: ", or name another model'
            ) from error
        return [str(prompt) for prompt in prompts]

    def responses(self, conversations: Sequence[Conversation]) -> list[str]:
        """Return the expected response of each conversation."""
        return [
            _filled(self._chat.response, {"reasoning": one.reasoning, "answer": one.answer})
            for one in conversations
        ]

    def tokens(self, texts: Sequence[str], *, ended: bool = False) -> list[list[int]]:
        """Return the ids of each text.

        Args:
            texts: prompts or responses.
            ended: whether to append the end-of-sequence token, which ends a response.
        """
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        if ended:
            return [[*of_text, self.tokenizer.eos_token_id] for of_text in ids]
        return ids

    def check(self, texts: Sequence[str]) -> None:
        """Raise ValueError if most texts lose words when they are decoded from their tokens.

        transformers selects the class of a tokenizer by names in the model's files. If they are wrong, it
        drops spaces without an error (its issues 45488 and 48206).
        """
        returned = [str(self.tokenizer.decode(ids)) for ids in self.tokens(texts)]
        lost = [
            pair for pair in zip(texts, returned, strict=True) if _words(pair[0]) != _words(pair[1])
        ]
        if 2 * len(lost) > len(texts):
            text, back = lost[0]
            raise ValueError(
                f"model.init_from: its tokenizer does not give back what it reads: {text[:60]!r} comes back "
                f"as {back[:60]!r}. transformers takes it for a {type(self.tokenizer).__name__}, which does "
                "not fit its files (tokenizer_config.json, tokenizer.json); mend them, or name another model"
            )

    @property
    def missing_start(self) -> str | None:
        """Return the token with which the model's texts begin, if ``chat.prompt`` lacks it."""
        start = self.tokenizer.bos_token
        prompt = self._chat.prompt
        if start is None or prompt is None or prompt.startswith(start):
            return None
        is_added = self.tokenizer("a")["input_ids"][:1] == [self.tokenizer.bos_token_id]
        return str(start) if is_added else None

    def answer(self, response: str) -> str:
        """Return the part of a response that ROUGE compares; an empty text if the mark is missing."""
        mark = self._chat.answer_follows
        if not mark:
            return response.strip()
        _, found, answer = response.rpartition(mark)
        return answer.strip() if found else ""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the tokens of a text."""
        parts = [
            self.tokenizer.backend_tokenizer.to_str(),
            str(self.tokenizer.eos_token_id),
            str(self.tokenizer.chat_template) if self._chat.prompt is None else "",
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model folder, without code of the folder."""
    check_files(folder)
    try:
        return cast(
            PreTrainedTokenizerBase,
            AutoTokenizer.from_pretrained(folder, trust_remote_code=False),
        )
    except (ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:  # transformers raises nearly anything
        raise unreadable(folder, error) from error


def _words(text: str) -> list[str]:
    """Return the words of a text, without the differences of white space and of equivalent characters."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text))


def _filled(template: str, values: dict[str, str]) -> str:
    """Replace the fields of a template. ``str.format`` would fail at its other braces."""
    return FIELD.sub(lambda match: values[match[1]], template)
