"""The model that a run starts from, as a folder on this machine or on the shared file system.

``model.init_from`` is a folder that transformers reads, a hub id (``owner/name`` or ``owner/name@revision``),
or ``sample``. Preparing the data brings the last two below ``data.downloads``; whatever comes later only
looks there.

The model of ``sample`` is a tiny Qwen2 with a tokenizer of its own, made on the spot without a network. Its
weights are random, so it knows nothing; a run from it shows that everything works, not how well.
"""

import re
from pathlib import Path

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
LEFT_OUT_FILES = ("*/*", "consolidated*")
"""Files with the same weights in formats of other programs."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")
VOCABULARY = 1024
END, PAD = "<|end|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")


def model_folder(config: RunFile) -> Path:
    """Return the folder of the model.

    Raises:
        ValueError: if it is not there.
    """
    folder = _place(config)[0]
    if is_fetched(config):
        return folder
    raise ValueError(
        f"model.init_from: {config.model.init_from} is not in {folder}; make data brings it there, with the "
        "same run file"
    )


def published_as(config: RunFile) -> tuple[str, str | None]:
    """Return what others load the model by: a hub id and its revision, or the folder."""
    folder, repository, revision = _place(config)
    return repository or str(folder), revision


def is_fetched(config: RunFile) -> bool:
    folder, repository, _ = _place(config)
    return (folder / "config.json").exists() and (not repository or (folder / WHOLE_FILE).exists())


def fetch_model(config: RunFile) -> Path:
    """Download the model if it is missing, and return its folder. No file is downloaded twice.

    Raises:
        FetchError: (a ValueError) if it cannot be had.
    """
    name, (folder, repository, revision) = str(config.model.init_from), _place(config)
    if is_fetched(config):
        return folder
    if name == "sample":
        rows = read_rows(QUESTIONS.sample, ("question", "reasoning", "answer"))
        write_model(folder, [text for _, cells in rows for text in cells.values() if text], VOCABULARY)
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


def _place(config: RunFile) -> tuple[Path, str, str | None]:
    """Folder of the model; with it the hub id, empty where it is not of the hub, and the revision."""
    name, downloads = str(config.model.init_from), Path(config.data.downloads)
    if name == "sample":
        return downloads / "models" / "sample", "", None
    if Path(name).is_dir() or not _HUB_ID.fullmatch(name):
        return Path(name), "", None
    repository, _, revision = name.partition("@")
    return hub_folder(downloads, f"models/{repository}", revision or None), repository, revision or None


def write_model(
    folder: Path, texts: list[str], vocabulary: int, *, hidden: int = 128, layers: int = 4
) -> None:
    """Write a Qwen2 of random weights, and a byte-level BPE tokenizer learnt from texts; whole or not.

    The same arguments give the same bytes every time.
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
        model = AutoModelForCausalLM.from_config(config)
    with workspace(folder) as partial:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        write_sums(partial)


def _tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
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
