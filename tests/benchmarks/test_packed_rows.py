"""Opponent ``packed``: transformers' model on packs, against single proteins."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, EsmForMaskedLM

from benchmarks import packed_rows
from benchmarks.packed_rows import LONGEST, PackCollator, Packs, use_varlen_attention
from benchmarks.trainers import layers_of, store_rows
from seqlm.proteins.alphabet import CLS, EOS, PAD
from seqlm.proteins.families.esm2.model import published_config
from seqlm.proteins.model.pretrained import tokenizer
from seqlm.training import device_runtime
from seqlm.training.records import RecordSplit
from tests.workloads.training.forked_processes import forked

TOKENS = 4096
SHARP = 6.0
"""Factor on queries and keys. Random ones are so small that a wrong scale would not show."""


@pytest.fixture
def packs(data: Path, tmp_path: Path) -> Packs:
    store_rows(RecordSplit(data, "train"), tmp_path / "rows", LONGEST)
    return Packs(tmp_path / "rows", TOKENS)


def test_packs_have_every_protein_once_and_a_constant_shape(packs: Packs) -> None:
    rows = [row for pack in packs.rows for row in pack]
    assert len(rows) == len(set(rows)) and len(packs) > 3
    shapes = set()
    for index in range(len(packs)):
        pack = packs[index]
        bounds = pack["bounds"].tolist()
        shapes.add((pack["input_ids"].shape, pack["bounds"].shape))
        for (start, stop), length in zip(pairwise(bounds), pack["lengths"], strict=False):
            assert stop - start == length <= LONGEST
            assert (pack["input_ids"][start], pack["input_ids"][stop - 1]) == (CLS, EOS)
            assert pack["position_ids"][start:stop].tolist() == list(range(length))
        end = sum(pack["lengths"])
        assert (pack["input_ids"][end:] == PAD).all() and TOKENS - end < LONGEST
        assert set(bounds[len(pack["lengths"]) + 1 :]) <= {TOKENS}
    assert len(shapes) == 1


def test_a_pack_is_masked_and_counted(packs: Packs) -> None:
    torch.manual_seed(0)
    collator = DataCollatorForLanguageModeling(tokenizer(published_config("8M")))
    pack = packs[0]
    batch = PackCollator(collator)([pack])
    lengths = np.array(pack["lengths"])
    expected = [len(lengths), lengths.sum() - 2 * len(lengths), (lengths**2).sum(), TOKENS]
    assert batch["counts"].tolist() == expected
    ids = torch.from_numpy(pack["input_ids"])[None]
    predicted = batch["labels"] != -100
    assert torch.equal(batch["labels"][predicted], ids[predicted])
    assert (ids[predicted] > EOS).all()
    assert predicted.sum() / expected[1] == pytest.approx(0.15, abs=0.02)
    assert torch.equal(batch["input_ids"][~predicted], ids[~predicted])


def test_too_few_proteins_for_a_pack_are_reported(data: Path, tmp_path: Path) -> None:
    store_rows(RecordSplit(data, "train"), tmp_path / "rows", LONGEST)
    with pytest.raises(ValueError, match="proteins fill no pack of 10000000 tokens"):
        Packs(tmp_path / "rows", 10_000_000)


def sharp_model(attention: str) -> EsmForMaskedLM:
    """A small ESM-2 whose attention is far from even, without token dropout."""
    config = copy.deepcopy(published_config("8M"))
    config.num_hidden_layers = 2
    config.token_dropout = False
    torch.manual_seed(0)
    model = EsmForMaskedLM(config).eval()
    for layer in layers_of(model):
        for part in (layer.attention.self.query, layer.attention.self.key):
            part.weight.data *= SHARP
    model.set_attn_implementation(attention)
    return model


def largest_difference(packs: Packs, dtype: torch.dtype) -> float:
    """Difference of a pack's logits from those of single proteins, relative to their standard deviation."""
    pack = packs[0]
    batch = {
        "input_ids": torch.from_numpy(pack["input_ids"])[None],
        "position_ids": torch.from_numpy(pack["position_ids"])[None],
        "attention_mask": torch.from_numpy(pack["input_ids"] != PAD).long()[None],
        "cu_seq_lens_q": torch.from_numpy(pack["bounds"]),
    }
    alone = sharp_model("eager")
    together = sharp_model("eager")
    use_varlen_attention(together)
    differences: list[Tensor] = []
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        found = together(**batch).logits[0].float()
        for start, length in zip(pack["bounds"], pack["lengths"], strict=False):
            ids = batch["input_ids"][:, start : start + length]
            expected = alone(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].float()
            error = (found[start : start + length] - expected).abs().max()
            differences.append(error / expected.std())
    return torch.stack(differences).max().item()


def test_logits_of_a_pack_are_those_of_single_proteins(packs: Packs) -> None:
    assert largest_difference(packs, torch.float32) < 1e-3


def test_a_wrong_scale_would_show(packs: Packs, monkeypatch: pytest.MonkeyPatch) -> None:
    right = packed_rows.varlen_attention

    def wrong(*arguments: object, scaling: float, **keywords: object) -> object:
        return right(*arguments, scaling=scaling / 4, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(packed_rows, "varlen_attention", wrong)
    assert largest_difference(packs, torch.float32) > 0.1


def with_the_varlen_operator(folder: Path) -> None:
    """Compare in a process of its own, because the rehearsal changes torch's operators."""
    from tests.gpu import rehearsal

    rehearsal.begin()
    figures = {"difference": largest_difference(Packs(folder / "rows", TOKENS), torch.bfloat16)}
    device_runtime.uses_flash = lambda x: False
    figures["of_bf16"] = largest_difference(Packs(folder / "rows", TOKENS), torch.bfloat16)
    (folder / "figures.json").write_text(json.dumps(figures))


@pytest.mark.long
def test_torchs_varlen_operator_gives_the_same_logits(data: Path, tmp_path: Path) -> None:
    store_rows(RecordSplit(data, "train"), tmp_path / "rows", LONGEST)
    with forked(1, with_the_varlen_operator, tmp_path, log=tmp_path / "log") as started:
        assert started.ends(300) == [0], started.output
    figures = json.loads((tmp_path / "figures.json").read_text())
    # Both round to bf16, in places that differ.
    assert 0 < figures["difference"] < 3 * figures["of_bf16"]
