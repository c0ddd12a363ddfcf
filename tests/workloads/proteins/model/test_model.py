"""The packed forward pass against transformers, one protein at a time."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    EsmConfig,
    EsmForMaskedLM,
    PretrainedConfig,
)

from seqlm.proteins.alphabet import MASK
from seqlm.proteins.families.esm2.facts import ESM2
from seqlm.proteins.families.esm2.model import published_config
from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import Pack
from seqlm.proteins.model.pretrained import of_config, on_meta, save_esm, with_weights
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.training.packing import PackShape
from seqlm.training.records import RecordSplit
from tests.workloads.proteins.tiny_models import tiny_config

BOTH_FAMILIES = True


@pytest.fixture
def pack(prepared: Path) -> Pack:
    split = RecordSplit(prepared, "train")
    stream = ProteinStream(split, PackShape.of(split, 512, 126), seed=3)
    planned = next(iter(stream.epoch(0)))
    assert len(planned.units) > 3
    return mask_pack(stream.load(planned), 128, 0.15, torch.device("cpu"))


def segments(pack: Pack) -> list[slice]:
    """Places of the proteins: those segments that start with CLS."""
    bounds = pack.segments.cumulative.tolist()
    return [slice(a, b) for a, b in pairwise(bounds) if b > a and pack.tokens[a] == 0]


@pytest.fixture
def reference(tiny_config: PretrainedConfig) -> Any:
    torch.manual_seed(0)
    plain = of_config(tiny_config).masked_lm.plain
    return plain(deepcopy(tiny_config)).eval()  # a test sets its kind of attention


@pytest.fixture
def packed(reference: Any) -> Any:
    weights = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    return with_weights(reference.config, weights)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_logits_equal_one_protein_at_a_time(
    packed: Any, reference: Any, pack: Pack, attention: str
) -> None:
    reference.set_attn_implementation(attention)
    logits = packed.logits(pack)
    assert (pack.tokens == MASK).sum() > 10, "token dropout must be at work"
    for place in segments(pack):
        alone = reference(input_ids=pack.tokens[None, place]).logits[0]
        torch.testing.assert_close(logits[place], alone, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_logits_at_rows_are_those_of_the_full_pass(packed: Any, pack: Pack) -> None:
    torch.testing.assert_close(packed.logits(pack, pack.rows), packed.logits(pack)[pack.rows])


def test_gradients_equal_those_of_transformers(packed: Any, reference: Any, pack: Pack) -> None:
    packed(pack).loss_sum.backward()
    labels = torch.full_like(pack.tokens, -100)
    known = pack.targets != -100
    labels[pack.rows[known]] = pack.targets[known]
    for place in segments(pack):
        logits = reference(input_ids=pack.tokens[None, place]).logits[0]
        if (labels[place] != -100).any():
            torch.nn.functional.cross_entropy(logits, labels[place], reduction="sum").backward()
    expected = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    actual = {name: p.grad for name, p in packed.named_parameters() if p.grad is not None}
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def test_activation_checkpointing_changes_nothing(packed: Any, pack: Pack) -> None:
    loss = packed(pack).loss_sum
    loss.backward()
    before = {name: p.grad for name, p in packed.named_parameters() if p.grad is not None}
    packed.zero_grad()
    packed.activation_checkpointing = True
    again = packed(pack).loss_sum
    again.backward()
    assert torch.equal(loss, again)
    for name, p in packed.named_parameters():
        if p.grad is not None:
            assert torch.equal(p.grad, before[name]), name


@pytest.mark.long
def test_compiled_layers_do_not_recompile_after_the_first_pack(packed: Any, prepared: Path) -> None:
    split = RecordSplit(prepared, "train")
    stream = ProteinStream(split, PackShape.of(split, 512, 126), seed=3)
    packs = [
        mask_pack(stream.load(planned), 128, 0.15, torch.device("cpu"))
        for planned, _ in zip(stream.epoch(0), range(6), strict=False)
    ]
    packs.append(mask_pack(stream.load(None), 128, 0.15, torch.device("cpu")))
    expected = [packed(pack).loss_sum.item() for pack in packs]
    # Recompiling is Dynamo's decision; this backend needs no C++ compiler.
    for layer in packed.layers:
        layer.compile(dynamic=False, backend="aot_eager")
    packed(packs[0]).loss_sum.backward()
    with torch.no_grad():
        packed(packs[0])
    with torch._dynamo.config.patch(error_on_recompile=True):
        compiled = [packed(pack).loss_sum for pack in packs]
        for loss in compiled:
            loss.backward()
        with torch.no_grad():
            assert [packed(pack).loss_sum.item() for pack in packs] == pytest.approx(
                expected, rel=1e-5
            )
    assert [loss.item() for loss in compiled] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_norms_ahead_give_the_same_bits(packed: Any, pack: Pack, precision: torch.dtype) -> None:
    """A layer computes the next layer's first norm, unless FSDP has its weights in another unit."""
    found = []
    for packed.is_sharded in (False, True):
        packed.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            loss = packed(pack).loss_sum
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in packed.parameters() if p.grad is not None)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_tied_weight_is_one_parameter() -> None:
    config = tiny_config()
    packed = with_weights(config, EsmForMaskedLM(config).state_dict())
    assert packed.lm_head.decoder.weight is packed.esm.embeddings.word_embeddings.weight


@pytest.mark.parametrize("size", ESM2.sizes)
def test_published_sizes(size: str) -> None:
    # Parameters of the released checkpoints as transformers counts them, contact head included.
    published = {
        "8M": 7.5e6,
        "35M": 33.5e6,
        "150M": 148e6,
        "650M": 651e6,
        "3B": 2.84e9,
        "15B": 15.1e9,
    }
    count = sum(p.numel() for p in on_meta(published_config(size)).parameters())
    assert count == pytest.approx(published[size], rel=0.01)


def test_another_architecture_is_refused() -> None:
    config = EsmConfig.from_dict({**tiny_config().to_dict(), "position_embedding_type": "absolute"})
    with pytest.raises(
        ValueError, match=r"not ESM-2: position_embedding_type='absolute' \(ESM-2 has 'rotary'\)"
    ):
        on_meta(config)


def test_saved_model_loads_offline(
    packed: Any, reference: Any, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    save_esm(tmp_path / "model", packed.config, dict(packed.state_dict()))
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = tokenizer("MKLVXA", return_tensors="pt")
    assert ids.input_ids.tolist() == [[0, 20, 15, 4, 7, 24, 5, 2]]
    with torch.no_grad():
        assert torch.equal(loaded(**ids).logits, reference(**ids).logits)
    assert not list(tmp_path.glob("*.partial"))
