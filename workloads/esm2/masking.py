"""Masks drawn on the device by an integer hash of (seed, epoch, protein, residue).

The same residue of the same protein gets the same mask in the same epoch on a CPU and on any GPU, at any
world size, in any packing. Shapes: T tokens, S segments, K room for predicted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workloads.training.hashing import GOLDEN, mix64_on_device
from workloads.training.packing import HostPack

from .alphabet import CLS, EOS, FIRST_RESIDUE, MASK, NUM_STANDARD_RESIDUES, PAD, UNK
from .attention import Segments
from .model import Pack
from .shapes import num_rows

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1
"""Of the predicted residues; the rest stays as it is (Devlin et al. 2019, as in ESM-2)."""
TRAINED_MASK_RATIO = 0.15 * MASK_SHARE
"""ESM-2's token dropout rescales to the share of <mask> it was trained with; a constant of the model."""

_GOLDEN = GOLDEN - (1 << 64)
_FRACTION_BITS = 24


def plain_pack(host: HostPack, max_length: int, device: torch.device) -> Pack:
    """Move a pack to the device as it is: ``rows`` are the segments' CLS, and there are no targets."""
    placed = _place(host, device)
    last = len(placed.tokens) - 1
    return Pack(
        tokens=placed.tokens,
        token_scale=token_scale(placed.tokens, placed.segment, placed.lengths),
        positions=placed.positions,
        segments=Segments(placed.cumulative, max_length, placed.segment),
        rows=placed.cumulative[:-1].long().clamp(max=last),
        targets=torch.empty(0, dtype=torch.long, device=device),
    )


def mask_pack(host: HostPack, max_length: int, mask_fraction: float, device: torch.device) -> Pack:
    """Move a pack to the device and mask it there."""
    placed = _place(host, device)
    tokens, segment, positions = placed.tokens, placed.segment, placed.positions
    keys = to_device(torch.from_numpy(host.keys), device)  # (S,)
    starts = to_device(torch.from_numpy(host.starts), device)  # (S,)
    num_tokens = len(tokens)

    # One hash a residue; its bits decide, from the top: predicted or not, what happens, which residue.
    residue = starts[segment] + positions - 1
    bits = mix64_on_device(keys[segment] + (residue + 1) * _GOLDEN)
    chosen = _fraction(bits, 40) < round(mask_fraction * (1 << _FRACTION_BITS))
    for special in (CLS, EOS, PAD, UNK):
        chosen &= tokens != special
    action = (bits >> 24) & 0xFFFF
    drawn = FIRST_RESIDUE + (((bits & 0xFFFFFF) * NUM_STANDARD_RESIDUES) >> 24)
    becomes_mask = chosen & (action < round(MASK_SHARE * 0x10000))
    becomes_random = chosen & ~becomes_mask & (action < round((MASK_SHARE + RANDOM_SHARE) * 0x10000))
    # masked_fill, not where with a number: on CUDA the latter copies the number there, a host sync.
    masked = torch.where(becomes_random, drawn, tokens).masked_fill(becomes_mask, MASK)

    rows = torch.nonzero_static(chosen, size=num_rows(num_tokens, mask_fraction), fill_value=-1)[:, 0]
    targets = tokens[rows].masked_fill(rows < 0, -100)
    # Spare rows are spread out: their gradients (of 0) would otherwise queue up to be added to one row.
    rows = torch.where(rows < 0, torch.arange(len(rows), device=device), rows)

    return Pack(
        tokens=masked,
        token_scale=token_scale(masked, segment, placed.lengths),
        positions=positions,
        segments=Segments(placed.cumulative, max_length, placed.segment),
        rows=rows,
        targets=targets,
    )


@dataclass(frozen=True)
class _Placed:
    """A pack's tokens on the device, and where each is."""

    tokens: torch.Tensor
    """(T,) int64."""
    cumulative: torch.Tensor
    """(S + 1,) int32."""
    lengths: torch.Tensor
    """(S,) int64."""
    segment: torch.Tensor
    """(T,) int64."""
    positions: torch.Tensor
    """(T,) int64 within the segment."""


def _place(host: HostPack, device: torch.device) -> _Placed:
    cumulative = to_device(torch.from_numpy(host.cumulative), device)
    tokens = to_device(torch.from_numpy(host.tokens), device).long()
    num_tokens, num_segments = len(tokens), len(cumulative) - 1
    lengths = cumulative.diff().long()
    segment = torch.repeat_interleave(
        torch.arange(num_segments, device=device), lengths, output_size=num_tokens
    )
    positions = torch.arange(num_tokens, device=device) - cumulative[segment].long()
    return _Placed(tokens, cumulative, lengths, segment, positions)


def token_scale(tokens: torch.Tensor, segment: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """ESM-2's token dropout, per protein: (T,) fp32 factors on the embeddings.

    <mask> counts as dropped (factor 0); the other tokens are scaled by (1 - 0.12) / (1 - share of <mask>
    in the protein, CLS and EOS counted), as in transformers' ``EsmEmbeddings``.
    """
    is_mask = tokens == MASK
    num_masked = torch.zeros_like(lengths).index_add_(0, segment, is_mask.long())  # (S,) exact: integers
    # A protein of masks only has nothing left to scale.
    kept_share = (1 - num_masked / lengths.clamp(min=1)).clamp(min=1e-6)
    scale = ((1 - TRAINED_MASK_RATIO) / kept_share)[segment]
    return scale.masked_fill(is_mask | (tokens == PAD), 0.0)


def _fraction(bits: torch.Tensor, shift: int) -> torch.Tensor:
    return (bits >> shift) & ((1 << _FRACTION_BITS) - 1)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Without the host waiting for it."""
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor
