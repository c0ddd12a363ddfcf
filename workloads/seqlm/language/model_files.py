"""Folder of the model that a run starts from, on this machine or on the shared file system.

``model.init_from`` is a folder that transformers reads, a hub id (``owner/name`` or ``owner/name@revision``),
or ``sample``. The preparation of the data stores the last two below ``data.downloads``, and later stages only
read them there.

``sample`` is a tiny Qwen2 with its own tokenizer, created without a network. Its weights are random, so a run
from it tests the software and not a model's quality.
"""

import re
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from seqlm.runs.run_file import RunFile
from seqlm.training.checksums import write_sums
from seqlm.training.data.remotes import FetchError
from seqlm.training.data.workspace import workspace
from seqlm.training.whole_file import write_whole

from .table import QUESTIONS, from_hub, hub_folder, read_rows

WHOLE_FILE = "fetched.txt"
"""File in a folder from the hub that marks it as complete."""
MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "LICENSE*", "NOTICE*")
"""Files that are downloaded from the hub."""
LEFT_OUT_FILES = ("*/*", "consolidated*")
"""Files among them that have the same weights in formats of other programs."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")
VOCABULARY = 1024
"""Number of tokens of ``sample``."""
END = "<|end|>"
PAD = "<|pad|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")


class _Place(NamedTuple):
    """Folder of a model, and its source on the hub."""

    folder: Path
    repository: str = ""
    """Hub id; empty if the model is not on the hub."""
    revision: str | None = None
    """Revision on the hub; None for the newest one."""


def model_folder(config: RunFile) -> Path:
    """Return the folder of the model.

    Raises:
        ValueError: if the model is missing there.
    """
    folder = _place(config).folder
    if is_fetched(config):
        return folder
    raise ValueError(
        f"model.init_from: {config.model.init_from} is not in {folder}; make data brings it there, with the "
        "same run file"
    )


def published_as(config: RunFile) -> tuple[str, str | None]:
    """Return the name by which the model is loaded, a hub id or the folder, and its revision."""
    place = _place(config)
    return place.repository or str(place.folder), place.revision


def is_fetched(config: RunFile) -> bool:
    """Return whether the model exists in its folder."""
    place = _place(config)
    is_complete = not place.repository or (place.folder / WHOLE_FILE).exists()
    return is_complete and (place.folder / "config.json").exists()


def fetch_model(config: RunFile) -> Path:
    """Download the model if it is missing, and return its folder. No file is downloaded twice.

    Raises:
        FetchError: (a ValueError) if it cannot be downloaded.
    """
    name = str(config.model.init_from)
    folder, repository, revision = _place(config)
    if is_fetched(config):
        return folder
    if name == "sample":
        rows = read_rows(QUESTIONS.sample, ("question", "reasoning", "answer"))
        write_model(
            folder, [text for _, cells in rows for text in cells.values() if text], VOCABULARY
        )
        return folder
    if not repository:
        raise FetchError(
            f"model.init_from: {name!r} is no folder with config.json, and no hub id, which are owner/name "
            "or owner/name@revision; give one of them, or sample"
        )
    with from_hub(f"model.init_from: {name}"):
        snapshot_download(
            repository,
            revision=revision,
            local_dir=folder,
            allow_patterns=list(MODEL_FILES),
            ignore_patterns=list(LEFT_OUT_FILES),
        )
    if not (folder / "config.json").exists() or not any(folder.glob("*.safetensors")):
        raise FetchError(
            f"model.init_from: {name} has no config.json or no *.safetensors on the hub, so it is no model "
            "that this can read; name another"
        )
    write_whole(folder / WHOLE_FILE, f"{name}\n")
    return folder


def _place(config: RunFile) -> _Place:
    """Return the place of the model that the run file names."""
    name = str(config.model.init_from)
    downloads = Path(config.data.downloads)
    if name == "sample":
        return _Place(downloads / "models" / "sample")
    if Path(name).is_dir() or not _HUB_ID.fullmatch(name):
        return _Place(Path(name))
    repository, _, given_revision = name.partition("@")
    revision = given_revision or None
    return _Place(hub_folder(downloads, f"models/{repository}", revision), repository, revision)


def write_model(
    folder: Path, texts: list[str], vocabulary: int, *, hidden: int = 128, layers: int = 4
) -> None:
    """Write a Qwen2 with random weights, and a byte-level BPE tokenizer that is trained on texts.

    The folder appears complete or not at all. The same arguments always give the same bytes.

    Args:
        folder: folder of the model.
        texts: texts for the tokenizer.
        vocabulary: number of tokens.
        hidden: hidden size.
        layers: number of layers.
    """
    tokenizer = _tokenizer(texts, vocabulary)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    with workspace(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        write_sums(partial)


def _tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on texts."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, PAD, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, pad_token=PAD)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
