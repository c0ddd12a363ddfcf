"""Convert a table of questions and answers to a folder of shards, from which packs are built.

The table is read into memory. The result does not depend on the order of its rows.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from seqlm.runs.run_file import RunFile
from seqlm.training.data.manifest import MANIFEST_FILE, SPLITS, Manifest, Settings, Split
from seqlm.training.data.spill import SPLIT_SALT, hash_all
from seqlm.training.data.split_shards import split_numbers, write_shards
from seqlm.training.data.workspace import (
    check_same,
    differences_of,
    existing_manifest,
    say,
    source_file,
    workspace,
)

from .model_files import fetch_model, is_fetched, model_folder
from .table import Conversation, read_conversations, table_files
from .template import Template

CHAT_FILE = "chat.json"
"""File beside the manifest that describes the conversion of texts to tokens."""
TOO_LONG = "longer_than_max_tokens"
"""Field of this file with the number of conversations that are left out for their length."""
CHECKED_QUESTIONS = 100
"""Number of questions that are decoded from their tokens as a check of the tokenizer."""


SHARD_SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string()),
        pa.field("tokens", pa.large_list(pa.int32())),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("question", pa.large_string()),
        pa.field("response", pa.large_string()),
    ]
)
"""Columns of the shards, which are the fields of ``Prepared``."""


@dataclass(frozen=True)
class Prepared:
    """A conversation as it is stored; ``SHARD_SCHEMA`` has the same names."""

    id: str
    """Hash of the question."""
    tokens: tuple[int, ...]
    """Ids of prompt and response."""
    prompt_tokens: int
    """Number of tokens of the prompt."""
    question: str
    response: str


def prepare_chat(config: RunFile) -> Manifest:
    """Fetch the model and the tables of a run and prepare them, or return at once if this has been done.

    Raises:
        ValueError: if the model, the tables or the output folder cannot be used. No partial result remains.
    """
    chat = config.chat
    assert chat is not None, "a run without chat: has no conversations"
    out = Path(config.data.path)
    downloads = Path(config.data.downloads)
    template = Template(chat, fetch_model(config))
    files = {path: name for name in chat.table for path in table_files(name, downloads)}
    settings = _settings(config)
    facts = _facts(config, template)
    manifest = existing_manifest(out, files, settings)
    if manifest is not None:
        check_same(out, _differences(out, facts))
        say(f"{out} is already prepared: {_summary(manifest)}")
        say(counts_line(out))
        return manifest
    conversations = read_conversations(list(files), chat)
    template.check([found.question for found in conversations[:CHECKED_QUESTIONS]])
    if template.missing_start:
        say(f"note: the model's texts begin with {template.missing_start}; chat.prompt does not")
    with workspace(out) as folder:
        prepared = _prepared(conversations, template)
        short = [one for one in prepared if len(one.tokens) <= chat.max_tokens]
        without_duplicates = {(one.tokens, one.prompt_tokens): one for one in short}
        kept = list(without_duplicates.values())
        parts = _split(kept, settings, num_given=len(prepared), max_tokens=chat.max_tokens)
        manifest = Manifest(
            sources=tuple(sorted(source_file(path, name) for path, name in files.items())),
            settings=settings,
            duplicates_dropped=len(short) - len(kept),
            splits={name: write_split(folder, name, part) for name, part in parts.items()},
            vocabulary=(),
        )
        manifest.save(folder)
        num_too_long = len(prepared) - len(short)
        document = facts | {TOO_LONG: num_too_long}
        (folder / CHAT_FILE).write_text(json.dumps(document, indent=1) + "\n")
    say(f"{out} is prepared: {_summary(manifest)}")
    if num_too_long:
        say(
            f"note: {num_too_long} of {len(prepared)} conversations have more than chat.max_tokens = "
            f"{chat.max_tokens} tokens and were left out"
        )
    say(counts_line(out))
    return manifest


def counts_line(out: Path, split: str | None = None) -> str:
    """Return the line with the numbers of conversations that are used and left out.

    Args:
        out: folder of the prepared conversations.
        split: split of which all are used; None for the tables.
    """
    manifest = Manifest.load(out)
    if split is not None:
        number = manifest.splits[split].records
        return f"conversations: read {number:,}, used {number:,}, left out 0"
    left_out = {
        "too long": json.loads((out / CHAT_FILE).read_text())[TOO_LONG],
        "repeated": manifest.duplicates_dropped,
    }
    total = sum(left_out.values())
    line = (
        f"conversations: read {manifest.records + total:,}, used {manifest.records:,}, left out "
        f"{total:,}"
    )
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in left_out.items() if number)
    return f"{line} ({kinds})" if kinds else line


def is_prepared(config: RunFile) -> bool:
    """Return whether a run's model and conversations exist. Their sources may be missing.

    Raises:
        ValueError: if the prepared data are damaged.
    """
    chat = config.chat
    assert chat is not None, "a run without chat: has no conversations"
    out = Path(config.data.path)
    if (
        not (out / MANIFEST_FILE).exists()
        or not (out / CHAT_FILE).exists()
        or not is_fetched(config)
    ):
        return False
    manifest = Manifest.load(out)
    sources = {source.name for source in manifest.sources}
    if manifest.settings != _settings(config) or sources != set(chat.table):
        return False
    template = Template(chat, model_folder(config))
    return not _differences(out, _facts(config, template))


def _settings(config: RunFile) -> Settings:
    """Return the settings of the manifest."""
    data = config.data
    return Settings(data.seed, data.validation_fraction, data.test_fraction, members=False)


def _facts(config: RunFile, template: Template) -> dict[str, Any]:
    """Return the settings that determine the tokens, as ``chat.json`` has them."""
    chat = config.chat
    assert chat is not None
    names = (
        "question_column",
        "reasoning_column",
        "answer_column",
        "prompt",
        "response",
        "max_tokens",
    )
    return {
        **{f"chat.{name}": getattr(chat, name) for name in names},
        "tokenizer (sha256)": template.fingerprint,
    }


def _differences(out: Path, wanted: dict[str, Any]) -> list[str]:
    """List the differences between the prepared conversations and the wanted settings."""
    try:
        there = json.loads((out / CHAT_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return [f"{CHAT_FILE} is missing or damaged, so it holds no conversations"]
    return differences_of(there, wanted)


def _prepared(conversations: Sequence[Conversation], template: Template) -> list[Prepared]:
    """Convert conversations to tokens."""
    # Questions that differ only in case and white space have the same id, and so the same split.
    questions = [" ".join(one.question.casefold().split()).encode() for one in conversations]
    numbers = hash_all(questions, SPLIT_SALT).tolist()
    prompts = template.tokens(template.prompts([one.question for one in conversations]))
    texts = template.responses(conversations)
    responses = template.tokens(texts, ended=True)
    return [
        Prepared(
            id=f"{number:016x}",
            tokens=(*prompt, *response),
            prompt_tokens=len(prompt),
            question=conversation.question,
            response=text,
        )
        for conversation, number, prompt, response, text in zip(
            conversations, numbers, prompts, responses, texts, strict=True
        )
    ]


def _split(
    kept: Sequence[Prepared], settings: Settings, *, num_given: int, max_tokens: int
) -> dict[str, list[Prepared]]:
    """Return the conversations of each split, shuffled by a hash. The question alone determines the split.

    Args:
        kept: conversations without duplicates and long ones.
        settings: settings of the manifest.
        num_given: number of conversations in the tables, for messages.
        max_tokens: longest conversation, for messages.
    """
    keys = hash_all([one.id.encode() for one in kept], settings.seed).tolist()
    order = sorted(range(len(kept)), key=lambda index: (keys[index], kept[index].tokens))
    parts: dict[str, list[Prepared]] = {name: [] for name in SPLITS}
    hashes = np.array([int(one.id, 16) for one in kept], dtype=np.uint64)
    numbers = split_numbers(hashes, settings)
    for index in order:
        parts[SPLITS[numbers[index]]].append(kept[index])
    needed = ["train", "validation"]
    if settings.test_fraction > 0:
        needed.append("test")
    for name in needed:
        if not parts[name]:
            raise ValueError(
                f"the {name} split has no conversation: of {num_given}, {len(kept)} are different and have "
                f"at most {max_tokens} tokens; give more, a larger chat.max_tokens, or larger "
                "data.validation_fraction and data.test_fraction"
            )
    return parts


def _summary(manifest: Manifest) -> str:
    """Return the numbers of conversations and tokens, for messages."""
    return f"{manifest.sizes} conversations, {manifest.residues:,} tokens"


def write_split(folder: Path, name: str, conversations: Sequence[Prepared]) -> Split:
    """Write the shards of a split into ``folder`` / ``name``, in the order given."""
    lengths = np.array([len(one.tokens) for one in conversations], dtype=np.int64)

    def batch(start: int, stop: int) -> pa.RecordBatch:
        rows = [vars(one) for one in conversations[start:stop]]
        return pa.RecordBatch.from_pylist(rows, schema=SHARD_SCHEMA)

    num_questions = len({one.id for one in conversations})
    return write_shards(folder, name, lengths, num_questions, SHARD_SCHEMA, batch)
