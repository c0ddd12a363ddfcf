"""ESMC's sizes, tokens and files, and the configurations that are refused."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    EsmcConfig,
    EsmcForMaskedLM,
    EsmcTokenizer,
)

from seqlm.proteins.alphabet import encode
from seqlm.proteins.families.esmc.facts import ESMC
from seqlm.proteins.families.esmc.model import published_config
from seqlm.proteins.model.pretrained import load_model, on_meta, save_esm
from tests.workloads.proteins.families.test_esmc_parity import (
    packed_model,
    plain_model,
    random_pack,
)


@pytest.mark.parametrize(("size", "published"), [("300M", 333e6), ("600M", 575e6), ("6B", 6.3e9)])
def test_published_sizes(size: str, published: float) -> None:
    count = sum(p.numel() for p in on_meta(published_config(size)).parameters())
    assert count == pytest.approx(published, rel=0.01)


def test_6b_is_the_default_of_transformers() -> None:
    assert published_config("6B").to_dict() == EsmcConfig().to_dict() and "6B" in ESMC.sizes


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_key_value_heads", 1, "num_key_value_heads=1 (ESMC has 2)"),
        (
            "rope_parameters",
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
            "rope_parameters={",
        ),
        ("attention_bias", True, "attention_bias=True (ESMC has False)"),
        ("mlp_bias", True, "mlp_bias=True (ESMC has False)"),
        ("hidden_act", "gelu", "hidden_act='gelu' (ESMC has 'silu')"),
        ("attention_dropout", 0.1, "attention_dropout=0.1 (ESMC has 0.0)"),
        ("vocab_size", 33, "vocab_size=33 (ESMC has 64)"),
        ("mask_token_id", 31, "mask_token_id=31 (ESMC has 32)"),
        ("head_dim", 32, "head_dim=32 (ESMC has 64)"),
    ],
)
def test_another_architecture_is_refused(field: str, value: Any, message: str) -> None:
    config = EsmcConfig(
        hidden_size=128, num_attention_heads=2, num_hidden_layers=2, intermediate_size=256
    )
    setattr(
        config, field, value
    )  # transformers itself checks the number of heads when it reads a file
    with pytest.raises(ValueError) as refused:
        on_meta(config)
    assert message in str(refused.value) and "is not ESMC" in str(refused.value)


def test_another_type_of_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="a model of type 'bert'; allowed are esm, esmc"):
        load_model(str(tmp_path))


def test_ids_are_those_of_the_tokenizer() -> None:
    """Lower-case letters, which mark soft-masked regions, are the residues that they are for ESM-2."""
    tokenizer = EsmcTokenizer()
    for letter in string.ascii_uppercase:
        assert encode(letter).tolist() == tokenizer(letter).input_ids[1:-1], letter
        assert encode(letter.lower()).tolist() == encode(letter).tolist()
    protein = "MKJJLVXAUBZO"
    assert encode(protein).tolist() == tokenizer(protein).input_ids[1:-1], (
        "unknown letters stay single"
    )


@pytest.mark.parametrize("character", "|.-*1")
def test_a_chain_break_is_refused_with_its_position(character: str) -> None:
    with pytest.raises(ValueError, match=r"at position 4 is not a residue"):
        encode(f"MKL{character}MKL")


def test_saved_model_loads_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plain = plain_model(2, 128, 256)
    save_esm(tmp_path / "model", plain.config, dict(packed_model(plain).state_dict()))
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert isinstance(loaded, EsmcForMaskedLM) and isinstance(tokenizer, EsmcTokenizer)
    ids = tokenizer("MKLVXA|M", return_tensors="pt")
    assert ids.input_ids.tolist() == [[0, 20, 15, 4, 7, 24, 5, 31, 20, 2]]
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**ids).logits, plain(**ids).logits)
        pack = random_pack()
        assert torch.equal(
            load_model(str(tmp_path / "model")).logits(pack), packed_model(plain).logits(pack)
        )
