"""Masks drawn on the device by an integer hash of (seed, epoch, protein, residue).

The same residue of the same protein gets the same mask in the same epoch on a CPU and on any GPU, at any
world size, in any packing. Shapes: T tokens, S segments, K room for predicted tokens.
"""

from dataclasses import replace

import torch

from seqlm.proteins.alphabet import CLS, EOS, FIRST_RESIDUE, MASK, NUM_STANDARD_RESIDUES, PAD, UNK
from seqlm.training.device_runtime import to_device
from seqlm.training.hashing import GOLDEN, mix64_on_device
from seqlm.training.layered_model import Segments
from seqlm.training.packing import HostPack

from .packed_model import Pack
from .shape import num_rows

MASK_SHARE = 0.8
"""Share of the predicted residues that become <mask>."""
RANDOM_SHARE = 0.1
"""Share of the predicted residues that become a random one. The rest stays unchanged (Devlin et al. 2019)."""
TRAINED_MASK_RATIO = 0.15 * MASK_SHARE
"""Share of <mask> in the training of ESM-2, to which its token dropout rescales: a constant of the model."""

_GOLDEN = GOLDEN - (1 << 64)
"""``GOLDEN`` as a signed number, because torch has no unsigned arithmetic of 64 bits."""
_CHOICE_SHIFT = 40
_CHOICE_BITS = 24
"""Bits of the hash that decide if a residue is predicted: those from ``_CHOICE_SHIFT`` on."""
_ACTION_SHIFT = 24
_ACTION_BITS = 16
"""Bits of the hash that decide if a predicted residue becomes <mask>, a random one, or stays."""
_RESIDUE_BITS = 24
"""Lowest bits of the hash, which decide which random residue it becomes."""


def plain_pack(host: HostPack, max_length: int, device: torch.device) -> Pack:
    """Move a pack to the device unmasked: ``rows`` are the segments' CLS, and there are no targets."""
    pack = _placed(host, max_length, device)
    return replace(pack, token_scale=token_scale(pack.tokens, pack.segments))


def mask_pack(host: HostPack, max_length: int, mask_fraction: float, device: torch.device) -> Pack:
    """Move a pack to the device and mask it there."""
    pack = _placed(host, max_length, device)
    tokens = pack.tokens
    segment = pack.segments.of_token
    keys = to_device(torch.from_numpy(host.keys), device)  # (S,)
    starts = to_device(torch.from_numpy(host.starts), device)  # (S,)

    residue = starts[segment] + pack.positions - 1
    bits = mix64_on_device(keys[segment] + (residue + 1) * _GOLDEN)
    chosen = _field(bits, _CHOICE_SHIFT, _CHOICE_BITS) < _share(mask_fraction, _CHOICE_BITS)
    for special in (CLS, EOS, PAD, UNK):
        chosen &= tokens != special
    action = _field(bits, _ACTION_SHIFT, _ACTION_BITS)
    becomes_mask = chosen & (action < _share(MASK_SHARE, _ACTION_BITS))
    is_changed = chosen & (action < _share(MASK_SHARE + RANDOM_SHARE, _ACTION_BITS))
    becomes_random = is_changed & ~becomes_mask
    drawn = FIRST_RESIDUE + (
        (_field(bits, 0, _RESIDUE_BITS) * NUM_STANDARD_RESIDUES) >> _RESIDUE_BITS
    )
    # masked_fill, not where with a number: on CUDA the latter copies the number there, a host sync.
    masked = torch.where(becomes_random, drawn, tokens).masked_fill(becomes_mask, MASK)

    room = num_rows(len(tokens), mask_fraction)
    rows = torch.nonzero_static(chosen, size=room, fill_value=-1)[:, 0]
    targets = tokens[rows].masked_fill(rows < 0, -100)
    # Spare rows are spread out: their gradients (of 0) would otherwise queue up to be added to one row.
    rows = torch.where(rows < 0, torch.arange(len(rows), device=device), rows)
    scale = token_scale(masked, pack.segments)
    return replace(pack, tokens=masked, token_scale=scale, rows=rows, targets=targets)


def _field(bits: torch.Tensor, shift: int, width: int) -> torch.Tensor:
    """Return ``width`` bits of a hash, from the bit ``shift`` on."""
    return (bits >> shift) & ((1 << width) - 1)


def _share(share: float, width: int) -> int:
    """Return the bound below which a number of ``width`` random bits lies with this probability."""
    return round(share * (1 << width))


def _placed(host: HostPack, max_length: int, device: torch.device) -> Pack:
    """Move a pack to the device, without the scale of its tokens."""
    cumulative = to_device(torch.from_numpy(host.cumulative), device)
    tokens = to_device(torch.from_numpy(host.tokens), device).long()
    num_tokens = len(tokens)
    num_segments = len(cumulative) - 1
    segment = torch.repeat_interleave(
        torch.arange(num_segments, device=device), cumulative.diff().long(), output_size=num_tokens
    )
    return Pack(
        tokens=tokens,
        token_scale=torch.empty(0, device=device),
        positions=torch.arange(num_tokens, device=device) - cumulative[segment].long(),
        segments=Segments(cumulative, max_length, segment),
        rows=cumulative[:-1].long().clamp(max=num_tokens - 1),
        targets=torch.empty(0, dtype=torch.long, device=device),
    )


def token_scale(tokens: torch.Tensor, segments: Segments) -> torch.Tensor:
    """Return the factors on the embeddings by ESM-2's token dropout per protein, (T,) fp32.

    <mask> counts as dropped (factor 0); the other tokens are scaled by (1 - 0.12) / (1 - share of <mask>
    in the protein, CLS and EOS counted), as in transformers' ``EsmEmbeddings``.
    """
    segment = segments.of_token
    assert segment is not None, "_placed sets it"
    lengths = segments.cumulative.diff().long()
    is_mask = tokens == MASK
    num_masked = torch.zeros_like(lengths).index_add_(
        0, segment, is_mask.long()
    )  # (S,) exact: integers
    # A protein of masks only has nothing left to scale.
    kept_share = (1 - num_masked / lengths.clamp(min=1)).clamp(min=1e-6)
    scale = ((1 - TRAINED_MASK_RATIO) / kept_share)[segment]
    return scale.masked_fill(is_mask | (tokens == PAD), 0.0)
