"""The packed model on CUDA against transformers', one protein at a time, and against its own other modes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import EsmForMaskedLM

from seqlm.proteins.alphabet import CLS, EOS
from seqlm.proteins.families.esm2.model import PackedEsm
from seqlm.proteins.inference.engine import EMBEDDING, RESIDUE_EMBEDDINGS, Engine
from seqlm.proteins.model.packed_model import Pack
from tests.gpu.conftest import Within
from tests.gpu.drawn import (
    HEAD_SIZES,
    DrawnSplit,
    Scale,
    difference,
    empty_pack,
    gradients,
    masked_packs,
    packed_model,
    proteins_of,
    reference_model,
    two_layers,
    under_autocast,
    worst_difference,
    worst_protein,
)

EXACT_LOGITS = 1e-5
EXACT_GRADIENTS = 1e-4
"""Largest relative errors of logits and of gradients. fp32 rounds to 6e-8 of a number. Sums of up to 512
numbers in another order differ by some 1e-6, and those of gradients run over all tokens of a pack besides.
TF32, which rounds to 5e-4, would not pass."""
AS_GOOD_AS_TRANSFORMERS = 2.0
"""Errors of our bf16 pass over those of transformers' own. Both round the same products to bf16, in places
that differ, and by chance either is better at the worst protein or tensor: on a CPU by up to 1.6."""
AS_GOOD_AS_EAGER = 2.0
"""Error of compiled layers over that of eager ones. Compiled layers keep fp32 in between where eager ones
round to bf16, so their error is about as large; by chance either is better at the worst protein or tensor."""
ANY_ORDER = 5e-3
"""flash adds up gradients of queries by atomic operations in any order, in fp32, and rounds the sums to bf16:
now and then a number is rounded to its other neighbour (0.4 %)."""


def transformers_pass(
    model: EsmForMaskedLM, pack: Pack, *, bf16: bool
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Return logits of each protein alone, and gradients of the pack's summed loss."""
    labels = torch.full_like(pack.tokens, -100)
    known = pack.targets != -100
    labels[pack.rows[known]] = pack.targets[known]
    model.zero_grad()
    logits = []
    for place in proteins_of(pack):
        with under_autocast(pack.tokens.device, enabled=bf16):
            alone = model(input_ids=pack.tokens[None, place]).logits[0].float()
        F.cross_entropy(alone, labels[place], ignore_index=-100, reduction="sum").backward()
        logits.append(alone.detach())
    return logits, gradients(model)


def packed_pass(
    model: PackedEsm, pack: Pack, *, bf16: bool
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The same by the packed model."""
    model.zero_grad()
    with under_autocast(pack.tokens.device, enabled=bf16):
        with torch.no_grad():
            logits = model.logits(pack)
        loss = model(pack).loss_sum
    loss.backward()
    return [logits[place] for place in proteins_of(pack)], gradients(model)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_logits_and_gradients_equal_those_of_transformers(
    head_size: int, device: torch.device, scale: Scale, within: Within
) -> None:
    config = two_layers(head_size, scale.heads)
    (pack,) = masked_packs(scale, device, 1)
    reference = reference_model(config, device)
    exact_logits, exact_gradients = transformers_pass(reference, pack, bf16=False)
    their_logits, their_gradients = transformers_pass(reference, pack, bf16=True)
    model = packed_model(config, device)
    logits, found = packed_pass(model, pack, bf16=False)
    within("fp32 logits", worst_protein(logits, exact_logits), EXACT_LOGITS)
    within("fp32 gradients", worst_difference(found, exact_gradients), EXACT_GRADIENTS)
    logits, found = packed_pass(model, pack, bf16=True)
    theirs = worst_protein(their_logits, exact_logits)
    within("bf16 logits", worst_protein(logits, exact_logits), AS_GOOD_AS_TRANSFORMERS * theirs)
    theirs = worst_difference(their_gradients, exact_gradients)
    within(
        "bf16 gradients", worst_difference(found, exact_gradients), AS_GOOD_AS_TRANSFORMERS * theirs
    )


def test_masks_are_those_of_the_cpu(device: torch.device, scale: Scale, within: Within) -> None:
    """Bit by bit: a run's data do not depend on its hardware."""
    here, on_cpu = (masked_packs(scale, place, 3) for place in (device, torch.device("cpu")))
    for found, expected in zip(here, on_cpu, strict=True):
        assert (expected.targets != -100).sum() > 0.05 * scale.tokens
        for name in ("tokens", "positions", "rows", "targets"):
            assert torch.equal(getattr(found, name).cpu(), getattr(expected, name)), name
        assert torch.equal(found.segments.cumulative.cpu(), expected.segments.cumulative)
        # A quotient in fp32, for which a device may take one rounding more.
        within("token scale", difference(found.token_scale.cpu(), expected.token_scale), 1e-6)


def test_compiled_layers_equal_eager_ones(
    device: torch.device, scale: Scale, within: Within
) -> None:
    packs = [*masked_packs(scale, device, 2), empty_pack(scale, device)]
    eager, compiled = (packed_model(two_layers(16, scale.heads), device) for _ in range(2))
    for layer in compiled.layers:
        layer.compile(dynamic=False)
    for pack in packs[:2]:
        exact_logits, exact = packed_pass(eager, pack, bf16=False)
        by_eager, by_compiled = (packed_pass(model, pack, bf16=True) for model in (eager, compiled))
        logits = [worst_protein(found, exact_logits) for found, _ in (by_compiled, by_eager)]
        slopes = [worst_difference(found, exact) for _, found in (by_compiled, by_eager)]
        within("logits", logits[0], AS_GOOD_AS_EAGER * logits[1])
        within("gradients", slopes[0], AS_GOOD_AS_EAGER * slopes[1])
    with under_autocast(device):
        assert compiled(packs[2]).loss_sum.item() == 0


def test_recomputed_layers_equal_kept_ones(
    device: torch.device, scale: Scale, within: Within
) -> None:
    (pack,) = masked_packs(scale, device, 1)
    kept, recomputed = (packed_model(two_layers(32, scale.heads), device) for _ in range(2))
    recomputed.recompute_layers()
    logits, expected = packed_pass(kept, pack, bf16=True)
    found_logits, found = packed_pass(recomputed, pack, bf16=True)
    within("logits", worst_protein(found_logits, logits), 0.0)  # the same kernels in the same order
    within("gradients", worst_difference(found, expected), ANY_ORDER)


def test_a_pack_of_padding_teaches_nothing(device: torch.device, scale: Scale) -> None:
    """A process gets one if a step has fewer packs than there are processes."""
    model = packed_model(two_layers(64, scale.heads), device)
    pack = empty_pack(scale, device)
    with under_autocast(device):
        loss = model(pack).loss_sum
    loss.backward()
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in gradients(model).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_equal_those_of_transformers(
    dtype: torch.dtype, device: torch.device, scale: Scale, within: Within
) -> None:
    config = two_layers(16, scale.heads)
    split = DrawnSplit(24, longest=scale.max_residues)
    proteins = [split.token_ids((0, index)) for index in range(split.num_units)]
    reference = reference_model(config, device)

    def hidden(tokens: np.ndarray, *, bf16: bool) -> Tensor:
        ids = torch.tensor([CLS, *tokens.tolist(), EOS], device=device)[None]
        with torch.no_grad(), under_autocast(device, enabled=bf16):
            return reference.esm(input_ids=ids).last_hidden_state[0, 1:-1].float().cpu()

    exact = [hidden(tokens, bf16=False) for tokens in proteins]
    tolerance = EXACT_LOGITS
    if dtype == torch.bfloat16:
        theirs = worst_protein([hidden(tokens, bf16=True) for tokens in proteins], exact)
        tolerance = AS_GOOD_AS_TRANSFORMERS * theirs
    # 16-bit matrices for good: the engine changes the model that it gets.
    engine = Engine(
        packed_model(config, device).requires_grad_(False),
        device=device,
        dtype=dtype,
        tokens_per_pack=scale.tokens,
        max_residues=scale.max_residues,
    )
    rows = [torch.from_numpy(found) for found in engine.run(proteins, RESIDUE_EMBEDDINGS)]
    within("residues", worst_protein(rows, exact), tolerance)
    means = [torch.from_numpy(found) for found in engine.run(proteins, EMBEDDING)]
    within("means", worst_protein(means, [rows.mean(0) for rows in exact]), tolerance)
