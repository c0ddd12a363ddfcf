"""A tiny Qwen2 with a tokenizer of its own, made on the spot: the embedded sample needs no network.

Its weights are random, so it knows nothing; a run from it shows that everything works, not how well.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from workloads.esm2.checksums import write_sums
from workloads.esm2.data.workspace import workspace

from .table import SAMPLE, read_rows

VOCABULARY = 1024
END, PAD = "<|end|>", "<|pad|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")


def make_sample_model(folder: Path) -> None:
    """Write the model and its tokenizer; the same bytes every time."""
    columns = ("question", "reasoning", "answer")
    texts = [text for _, cells in read_rows(SAMPLE, columns) for text in cells.values() if text]
    write_model(folder, texts, VOCABULARY)


def write_model(
    folder: Path, texts: list[str], vocabulary: int, *, hidden: int = 128, layers: int = 4, seed: int = 0
) -> None:
    """Write a Qwen2 of random weights, and a byte-level BPE tokenizer learnt from texts; whole or not."""
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
        torch.manual_seed(seed)
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
