"""Packs of proteins for transformers' models, with torch's varlen attention.

``Packs`` flattens proteins to a constant number of tokens, ``PackCollator`` masks them with transformers' own
collator, and ``use_varlen_attention`` has a model compute attention within each protein. Attention equals
that of single proteins. ESM-2's token dropout does not: transformers' model applies it per row, and a pack is
one row.

Shapes: T tokens of a pack, S proteins, H heads, D head size.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.utils.data import Dataset
from transformers import AttentionInterface, DataCollatorForLanguageModeling

from benchmarks.ours import MAX_RESIDUES, SEED
from seqlm.proteins.alphabet import EOS, PAD
from seqlm.training import device_runtime
from seqlm.training.packing import SPECIAL_TOKENS

VARLEN = "benchmark_varlen"
"""Name of the attention function in transformers' table."""
LONGEST = MAX_RESIDUES + SPECIAL_TOKENS
"""Tokens of the longest protein. It is a constant of the compiled layers."""
UNTARGETED = -100
"""Label of tokens that are not predicted."""


class Packs(Dataset[dict[str, Any]]):
    """Packs of stored rows in a random order, filled up with padding.

    Args:
        folder: folder of rows.
        num_tokens: tokens of a pack, T.
    """

    def __init__(self, folder: Path, num_tokens: int) -> None:
        self._ids = np.load(folder / "ids.npy", mmap_mode="r")
        self._lengths = np.load(folder / "lengths.npy")
        self._num_tokens = num_tokens
        self.rows = _planned(self._lengths, num_tokens)
        """Numbers of the rows of each pack."""
        # One more for the padding. The number is constant, so that the compiled layers need one graph.
        self._num_segments = 1 + max(len(rows) for rows in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        lengths = self._lengths[self.rows[index]].tolist()
        ids = np.full(self._num_tokens, PAD, dtype=np.int64)
        positions = np.zeros(self._num_tokens, dtype=np.int64)
        bounds = np.full(self._num_segments + 1, self._num_tokens, dtype=np.int32)
        start = 0
        for number, (row, length) in enumerate(zip(self.rows[index], lengths, strict=True)):
            bounds[number] = start
            ids[start : start + length] = self._ids[row, :length]
            positions[start : start + length] = np.arange(length)
            start += length
        # The padding is a segment, too. It is shorter than the protein that did not fit.
        bounds[len(lengths)] = start
        return {"input_ids": ids, "position_ids": positions, "bounds": bounds, "lengths": lengths}


def _planned(lengths: Any, num_tokens: int) -> list[list[int]]:
    """Return the rows of each pack: the next ones of a random order that fit, without the last pack.

    The last pack is left out, because its padding may be longer than ``LONGEST``.

    Raises:
        ValueError: if the rows fill no pack.
    """
    order = np.random.default_rng(SEED).permutation(len(lengths))
    packs: list[list[int]] = [[]]
    free = num_tokens
    for row in order.tolist():
        if lengths[row] > free:
            packs.append([])
            free = num_tokens
        packs[-1].append(row)
        free -= int(lengths[row])
    if len(packs) == 1:
        raise ValueError(
            f"packs: {len(lengths)} proteins fill no pack of {num_tokens} tokens; expected more proteins"
        )
    return packs[:-1]


class PackCollator:
    """Collator of batches of one pack, with the ``COUNTS`` of its proteins."""

    def __init__(self, collator: DataCollatorForLanguageModeling) -> None:
        self._collator = collator

    def __call__(self, packs: list[dict[str, Any]]) -> dict[str, Any]:
        (pack,) = packs
        ids = torch.from_numpy(pack["input_ids"])[None]
        is_special = (ids <= EOS).long()  # CLS, PAD and EOS have the lowest ids
        tokens, labels = self._collator.torch_mask_tokens(
            ids.clone(), special_tokens_mask=is_special
        )
        lengths = torch.tensor(pack["lengths"])
        counts = [len(lengths), lengths.sum() - SPECIAL_TOKENS * len(lengths)]
        counts += [(lengths**2).sum(), ids.numel()]
        return {
            "input_ids": tokens,
            "labels": labels,
            "attention_mask": (ids != PAD).long(),
            "position_ids": torch.from_numpy(pack["position_ids"])[None],
            "cu_seq_lens_q": torch.from_numpy(pack["bounds"]),
            "counts": torch.tensor(counts, dtype=torch.float64),
        }


def use_varlen_attention(model: nn.Module) -> None:
    """Have a model of transformers compute attention within the proteins of ``cu_seq_lens_q``.

    transformers makes no mask for an attention function that has none in its table.
    """
    AttentionInterface.register(VARLEN, varlen_attention)
    model.set_attn_implementation(VARLEN)  # type: ignore[operator]  # of PreTrainedModel


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    cu_seq_lens_q: Tensor,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return attention within the segments of one row, (1, T, H, D), and no weights.

    Args:
        module: attention module.
        query: (1, H, T, D) queries. ESM-2's are scaled before the rotation, so ``scaling`` is then 1.
        key: (1, H, T, D) keys.
        value: (1, H, T, D) values. Rotated queries and keys are fp32 and are cast to their type.
        attention_mask: None.
        scaling: factor on the products of queries and keys; None for 1 / sqrt(D).
        dropout: 0, as in all published models.
        cu_seq_lens_q: (S + 1,) int32 boundaries of the segments, from 0 to T.
    """
    q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    if device_runtime.uses_flash(v):
        found = varlen_attn(q, k, v, cu_seq_lens_q, cu_seq_lens_q, LONGEST, LONGEST, scale=scaling)
        assert isinstance(found, Tensor)  # it returns more only if asked to
        return found[None], None
    bounds = cu_seq_lens_q.tolist()
    parts: list[Tensor] = []
    for start, stop in pairwise(bounds):
        if stop == start:
            continue
        # (1, H, L, D) of one segment
        one_q, one_k, one_v = (x[None, start:stop].transpose(1, 2) for x in (q, k, v))
        parts.append(F.scaled_dot_product_attention(one_q, one_k, one_v, scale=scaling))
    return torch.cat(parts, dim=2).transpose(1, 2), None
