"""Prompts and expected responses, as texts and as tokens."""

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .config import FIELD, ChatConfig
from .table import Conversation


class Template:
    """Texts and tokens of conversations.

    Prompt and response are converted to tokens separately, so that the prompt of a question is the same in
    training and in generation.

    Args:
        chat: of the run.
        folder: of the model, with its tokenizer.

    Raises:
        ValueError: if the tokenizer has no end-of-sequence token, or no chat template where one is needed.
    """

    def __init__(self, chat: ChatConfig, folder: Path) -> None:
        self._chat = chat
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
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
        if self._chat.prompt is not None:
            return [_filled(self._chat.prompt, {"question": question}) for question in questions]
        turns = [[{"role": "user", "content": question}] for question in questions]
        found = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        return list(map(str, found))

    def responses(self, conversations: Sequence[Conversation]) -> list[str]:
        return [
            _filled(self._chat.response, {"reasoning": found.reasoning, "answer": found.answer})
            for found in conversations
        ]

    def tokens(self, texts: Sequence[str], *, ended: bool = False) -> list[list[int]]:
        """Ids of each text, with the token that ends a response where it is ``ended``."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return [[*found, self.tokenizer.eos_token_id] for found in ids] if ended else ids

    def check(self, texts: Sequence[str]) -> None:
        """Raise ValueError if most texts do not come back from their tokens with the same words.

        transformers picks a tokenizer's class by names in the model's files. Where these are wrong, spaces
        are dropped and nothing is said (its issues 45488 and 48206).
        """
        returned = [str(self.tokenizer.decode(ids)) for ids in self.tokens(texts)]
        lost = [pair for pair in zip(texts, returned, strict=True) if _words(pair[0]) != _words(pair[1])]
        if 2 * len(lost) > len(texts):
            text, back = lost[0]
            raise ValueError(
                f"model.init_from: its tokenizer does not give back what it reads: {text[:60]!r} comes back "
                f"as {back[:60]!r}. transformers takes it for a {type(self.tokenizer).__name__}, which does "
                "not fit its files (tokenizer_config.json, tokenizer.json); mend them, or name another model"
            )

    @property
    def missing_start(self) -> str | None:
        """The token that the model's texts begin with, if ``chat.prompt`` does not."""
        start = self.tokenizer.bos_token
        if start is None or self._chat.prompt is None or self._chat.prompt.startswith(start):
            return None
        begins = self.tokenizer("a")["input_ids"][:1] == [self.tokenizer.bos_token_id]
        return str(start) if begins else None

    def answer(self, response: str) -> str:
        """Return the part of a response that ROUGE compares; nothing if the mark is missing."""
        mark = self._chat.answer_follows
        if mark and mark not in response:
            return ""
        return (response.rpartition(mark)[2] if mark else response).strip()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that makes tokens of texts."""
        parts = [
            self.tokenizer.backend_tokenizer.to_str(),
            str(self.tokenizer.eos_token_id),
            str(self.tokenizer.chat_template) if self._chat.prompt is None else "",
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _words(text: str) -> list[str]:
    """Return words that do not depend on white space, nor on the encoding of characters that have two."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text))


def _filled(template: str, values: dict[str, str]) -> str:
    """Fill in the fields without ``str.format``, because other braces of a template must stay."""
    return FIELD.sub(lambda match: values[match[1]], template)
