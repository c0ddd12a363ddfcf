"""Convert a table of questions and answers to a folder of shards, from which packs are built.

The table is held in memory. The result does not depend on the order of its rows.
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
CHECKED_QUESTIONS = 100
"""Questions that are decoded from their tokens as a check."""


@dataclass(frozen=True)
class Prepared:
    """A conversation as it is stored; ``SHARD_SCHEMA`` has the same names."""

    id: str
    """Hash of the question."""
    tokens: tuple[int, ...]
    prompt_tokens: int
    question: str
    response: str


def prepare_chat(config: RunFile) -> Manifest:
    """Bring the model and the tables of a run and prepare them; return at once if that has been done.

    Raises:
        ValueError: for anything wrong with them or with the output folder; nothing is left behind.
    """
    chat, out = config.chat, Path(config.data.path)
    assert chat is not None, "a run without chat: has no conversations"
    downloads = Path(config.data.downloads)
    template = Template(chat, fetch_model(config))
    files = {path: name for name in chat.table for path in table_files(name, downloads)}
    settings, facts = _settings(config), _facts(config, template)
    manifest = existing_manifest(out, files, settings)
    if manifest is not None:
        check_same(out, _differences(out, facts))
        say(f"{out} is already prepared: {_summary(manifest)}")
        return manifest
    conversations = read_conversations(list(files), chat)
    template.check([found.question for found in conversations[:CHECKED_QUESTIONS]])
    if template.missing_start:
        say(f"note: the model's texts begin with {template.missing_start}; chat.prompt does not")
    with workspace(out) as folder:
        found = _prepared(conversations, template)
        short = [one for one in found if len(one.tokens) <= chat.max_tokens]
        kept = list({(one.tokens, one.prompt_tokens): one for one in short}.values())
        parts = _split(kept, settings, of=len(found), max_tokens=chat.max_tokens)
        manifest = Manifest(
            sources=tuple(sorted(source_file(path, name) for path, name in files.items())),
            settings=settings,
            duplicates_dropped=len(short) - len(kept),
            splits={name: write_split(folder, name, part) for name, part in parts.items()},
            vocabulary=(),
        )
        manifest.save(folder)
        left_out = {"longer_than_max_tokens": len(found) - len(short)}
        (folder / CHAT_FILE).write_text(json.dumps(facts | left_out, indent=1) + "\n")
    say(f"{out} is prepared: {_summary(manifest)}")
    if len(short) < len(found):
        say(
            f"note: {len(found) - len(short)} of {len(found)} conversations have more than chat.max_tokens = "
            f"{chat.max_tokens} tokens and were left out"
        )
    return manifest


def is_prepared(config: RunFile) -> bool:
    """Return whether a run's model and conversations exist. Their sources may be missing.

    Raises:
        ValueError: if the prepared data are damaged.
    """
    chat, out = config.chat, Path(config.data.path)
    assert chat is not None, "a run without chat: has no conversations"
    if not (out / MANIFEST_FILE).exists() or not (out / CHAT_FILE).exists() or not is_fetched(config):
        return False
    manifest = Manifest.load(out)
    made_of = {source.name for source in manifest.sources}
    return (
        manifest.settings == _settings(config)
        and made_of == set(chat.table)
        and not _differences(out, _facts(config, Template(chat, model_folder(config))))
    )


def _settings(config: RunFile) -> Settings:
    data = config.data
    return Settings(data.seed, data.validation_fraction, data.test_fraction, members=False)


def _facts(config: RunFile, template: Template) -> dict[str, Any]:
    chat = config.chat
    assert chat is not None
    names = ("question_column", "reasoning_column", "answer_column", "prompt", "response", "max_tokens")
    return {
        **{f"chat.{name}": getattr(chat, name) for name in names},
        "tokenizer (sha256)": template.fingerprint,
    }


def _differences(out: Path, wanted: dict[str, Any]) -> list[str]:
    try:
        there = json.loads((out / CHAT_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return [f"{CHAT_FILE} is missing or damaged, so it holds no conversations"]
    return differences_of(there, wanted)


def _prepared(conversations: Sequence[Conversation], template: Template) -> list[Prepared]:
    prompts = template.prompts([found.question for found in conversations])
    responses = template.responses(conversations)
    # Questions that differ in case and white space alone go to one split.
    questions = [" ".join(found.question.casefold().split()).encode() for found in conversations]
    return [
        Prepared(f"{number:016x}", (*prompt, *response), len(prompt), found.question, text)
        for number, prompt, response, found, text in zip(
            hash_all(questions, SPLIT_SALT).tolist(),
            template.tokens(prompts),
            template.tokens(responses, ended=True),
            conversations,
            responses,
            strict=True,
        )
    ]


def _split(
    kept: Sequence[Prepared], settings: Settings, *, of: int, max_tokens: int
) -> dict[str, list[Prepared]]:
    """Conversations of each split, shuffled by a hash. The question alone decides on the split."""
    keys = hash_all([one.id.encode() for one in kept], settings.seed).tolist()
    order = sorted(range(len(kept)), key=lambda index: (keys[index], kept[index].tokens))
    parts: dict[str, list[Prepared]] = {name: [] for name in SPLITS}
    numbers = split_numbers(np.array([int(one.id, 16) for one in kept], dtype=np.uint64), settings)
    for index in order:
        parts[SPLITS[numbers[index]]].append(kept[index])
    for name in ["train", "validation", *(["test"] if settings.test_fraction > 0 else [])]:
        if not parts[name]:
            raise ValueError(
                f"the {name} split has no conversation: of {of}, {len(kept)} are different and have at most "
                f"{max_tokens} tokens; give more, a larger chat.max_tokens, or larger "
                "data.validation_fraction and data.test_fraction"
            )
    return parts


def _summary(manifest: Manifest) -> str:
    return f"{manifest.sizes} conversations, {manifest.residues:,} tokens"


SHARD_SCHEMA = pa.schema(
    [
        pa.field("id", pa.large_string()),
        pa.field("tokens", pa.large_list(pa.int32())),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("question", pa.large_string()),
        pa.field("response", pa.large_string()),
    ]
)


def write_split(folder: Path, name: str, conversations: Sequence[Prepared]) -> Split:
    """Write the shards of a split into ``folder`` / ``name``, in the order given."""
    lengths = np.array([len(one.tokens) for one in conversations], dtype=np.int64)

    def batch(start: int, stop: int) -> pa.RecordBatch:
        rows = [vars(one) for one in conversations[start:stop]]
        return pa.RecordBatch.from_pylist(rows, schema=SHARD_SCHEMA)

    return write_shards(folder, name, lengths, len({one.id for one in conversations}), SHARD_SCHEMA, batch)
