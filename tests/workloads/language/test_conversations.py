"""Packs of conversations: what is in them, what is trained on, and that none sees another."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from seqlm.language.conversations import ConversationSplit, ConversationStream, token_pack
from seqlm.language.model import MODEL_TYPES, on_meta
from seqlm.runs.run_file import load_config
from seqlm.training.data.manifest import IGNORED
from seqlm.training.packing import PackShape
from seqlm.training.saved_model import assigned

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stream(run_file: Path) -> ConversationStream:
    split = ConversationSplit(load_config(run_file).data.path, "train")
    return ConversationStream(split, PackShape.of(split, 384, 96, special_tokens=0), seed=0)


def test_responses_are_trained_on_and_prompts_are_not(
    stream: ConversationStream, run_file: Path, tiny_qwen: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen)
    split = ConversationSplit(load_config(run_file).data.path, "train")
    expected = sorted(
        response + tokenizer.eos_token for _, response in split.texts(split.num_records)
    )
    found = []
    for planned in stream.epoch(0):
        host = stream.load(planned)
        bounds = host.cumulative[: len(planned.units) + 1].tolist()
        assert host.positions[bounds[:-1]].tolist() == [0] * len(planned.units)
        for start, stop in itertools.pairwise(bounds):
            mine = (host.rows >= start) & (host.rows < stop) & (host.targets != IGNORED)
            assert (host.targets[mine] == host.tokens[host.rows[mine] + 1]).all()
            found.append(tokenizer.decode(host.targets[mine]))
            prompt = tokenizer.decode(host.tokens[start : host.rows[mine][0] + 1])
            assert prompt.startswith("<|user|>Patient") and prompt.endswith("<|assistant|>")
    assert sorted(found) == expected, "each once an epoch"
    empty = stream.load(None)
    assert (empty.targets == IGNORED).all() and len(empty.rows) > 0, (
        "a process with nothing to do computes, too"
    )


def tiny(model_type: str) -> Any:
    config = AutoConfig.for_model(
        model_type,
        vocab_size=384,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        sliding_window=None,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_pack_has_the_logits_and_gradients_of_each_conversation_alone(
    stream: ConversationStream, model_type: str
) -> None:
    plain = tiny(model_type)
    packed = assigned(on_meta(plain.config), {k: v.clone() for k, v in plain.state_dict().items()})
    planned = next(iter(stream.epoch(0)))
    assert len(planned.units) > 2, "there must be something to mix"
    host = stream.load(planned)
    pack = token_pack(host, stream.shape.max_length, CPU)
    logits = packed.lm_head(packed.hidden(pack))
    loss = torch.zeros(())
    bounds = host.cumulative[: len(planned.units) + 1].tolist()
    for start, stop in itertools.pairwise(bounds):
        alone = plain(pack.tokens[None, start:stop]).logits[0]
        torch.testing.assert_close(logits[start:stop], alone, rtol=0, atol=1e-5)
        labels = torch.full((stop - start,), IGNORED)
        mine = (pack.rows >= start) & (pack.rows < stop) & (pack.targets != IGNORED)
        labels[pack.rows[mine] - start] = pack.targets[mine]
        loss = loss + torch.nn.functional.cross_entropy(alone, labels, reduction="sum")
    loss.backward()
    found = packed(pack)
    torch.testing.assert_close(found.loss_sum, loss, rtol=1e-5, atol=1e-4)
    right = (logits[pack.rows].argmax(dim=-1) == pack.targets).sum()
    assert found.num_correct == right
    found.loss_sum.backward()
    gradients = dict(plain.named_parameters())
    for name, parameter in packed.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, rtol=1e-4, atol=1e-4)


def test_recomputing_layers_and_parts_of_the_head_changes_nothing(
    stream: ConversationStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tiny("qwen2")
    pack = token_pack(stream.load(next(iter(stream.epoch(0)))), stream.shape.max_length, CPU)
    gradients = []
    for recomputing in (False, True):
        model = assigned(
            on_meta(plain.config), {k: v.clone() for k, v in plain.state_dict().items()}
        )
        if recomputing:
            model.recompute_layers()
            monkeypatch.setattr("seqlm.language.model.HEAD_ROWS", 16)
        model(pack).loss_sum.backward()
        gradients.append({name: value.grad for name, value in model.named_parameters()})
    for name, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], value, rtol=1e-5, atol=1e-5)


def test_another_conversation_in_the_pack_changes_nothing(stream: ConversationStream) -> None:
    plain = tiny("llama")
    model = assigned(on_meta(plain.config), plain.state_dict())
    host = stream.load(next(iter(stream.epoch(0))))
    start, stop = host.cumulative[1:3].tolist()
    other = host.tokens.copy()
    other[:start] = np.roll(other[:start], 1)
    other[stop:] = 7
    with torch.no_grad():
        first, second = (
            model.hidden(token_pack(replace(host, tokens=tokens), stream.shape.max_length, CPU))
            for tokens in (host.tokens, other)
        )
    assert torch.equal(first[start:stop], second[start:stop])
    assert not torch.equal(first[:start], second[:start])
