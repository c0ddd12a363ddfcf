"""Masks drawn on the device by an integer hash of (seed, epoch, protein, residue).

The same residue of the same protein gets the same mask in the same epoch on a CPU and on any GPU, at any
world size, in any packing. Shapes: T tokens, S segments, K room for predicted tokens.
"""

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqlm.proteins.alphabet import CLS, EOS, FIRST_RESIDUE, MASK, NUM_STANDARD_RESIDUES, PAD, UNK
from seqlm.training.data.manifest import IGNORED
from seqlm.training.hashing import GOLDEN, mix64_on_device
from seqlm.training.layered_model import Segments
from seqlm.training.step.staging import AnyPack, staged

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


class _Placed(NamedTuple):
    """Tokens of a pack with their proteins, before masking."""

    tokens: Tensor
    """(T,) int64 ids."""
    positions: Tensor
    """(T,) int64 position within the protein."""
    segment: Tensor
    """(T,) int64 number of each token's segment."""


class _Masks(NamedTuple):
    """Tensors of a masked pack; see ``Pack``."""

    tokens: Tensor
    token_scale: Tensor
    positions: Tensor
    segment: Tensor
    """(T,) int64 number of each token's segment."""
    rows: Tensor
    targets: Tensor


def plain_pack(host: AnyPack, max_length: int, device: torch.device) -> Pack:
    """Move a pack to the device unmasked: ``rows`` are the segments' CLS, and there are no targets."""
    arrays = staged(host, device).arrived()
    cumulative = arrays["cumulative"]
    placed = _placed(arrays["tokens"], cumulative)
    return Pack(
        tokens=placed.tokens,
        token_scale=token_scale(placed.tokens, cumulative, placed.segment),
        positions=placed.positions,
        segments=Segments(cumulative, max_length, placed.segment),
        rows=cumulative[:-1].long().clamp(max=len(placed.tokens) - 1),
        targets=torch.empty(0, dtype=torch.long, device=device),
    )


def mask_pack(
    host: AnyPack,
    max_length: int,
    mask_fraction: float,
    device: torch.device,
    compiles: bool = False,
) -> Pack:
    """Move a pack to the device and mask it there.

    Args:
        host: pack on the host, or on its way to the device.
        max_length: largest length of a segment.
        mask_fraction: share of the residues to predict.
        device: device of the result.
        compiles: whether one compiled function masks, instead of about 90 operations that the host launches
            one by one. Tokens, rows and targets are the same, and scales differ by rounding.
    """
    arrays = staged(host, device).arrived()
    cumulative = arrays["cumulative"]
    room = num_rows(len(arrays["tokens"]), mask_fraction)
    threshold = _share(mask_fraction, _CHOICE_BITS)
    function = compiled_masks() if compiles else _masks
    with torch.no_grad():  # in training and evaluation alike, so that they share a compiled graph
        masks = function(
            arrays["tokens"], cumulative, arrays["keys"], arrays["starts"], threshold, room
        )
    return Pack(
        tokens=masks.tokens,
        token_scale=masks.token_scale,
        positions=masks.positions,
        segments=Segments(cumulative, max_length, masks.segment),
        rows=masks.rows,
        targets=masks.targets,
    )


@cache
def compiled_masks() -> Callable[..., _Masks]:
    """Return ``_masks`` as a compiled function that computes without it if compilation fails."""
    compiled: Any = torch.compile(_masks, dynamic=False, fullgraph=True)
    has_failed = False

    def masks(*arguments: Any) -> _Masks:
        nonlocal has_failed
        if not has_failed:
            try:
                return _Masks(*compiled(*arguments))
            except Exception as error:  # of any part of a compiler
                has_failed = True
                print(
                    f"warning: masks are not compiled: {type(error).__name__}: {error}; their operations are "
                    "launched one by one in its place, which is slower",
                    file=sys.stderr,
                )
        return _masks(*arguments)

    return masks


def _masks(
    ids: Tensor, cumulative: Tensor, keys: Tensor, starts: Tensor, threshold: int, room: int
) -> _Masks:
    """Mask a pack with operations of constant shapes, none of which the host waits for.

    Args:
        ids: (T,) uint8 ids.
        cumulative: (S + 1,) bounds of the segments.
        keys: (S,) hashes of the proteins.
        starts: (S,) index of each crop's first residue.
        threshold: bound of the bits of the residues that are predicted.
        room: K, room for predicted residues.
    """
    tokens, positions, segment = _placed(ids, cumulative)
    residue = starts[segment] + positions - 1
    bits = mix64_on_device(keys[segment] + (residue + 1) * _GOLDEN)
    chosen = _field(bits, _CHOICE_SHIFT, _CHOICE_BITS) < threshold
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

    rows = torch.nonzero_static(chosen, size=room, fill_value=-1)[:, 0]
    targets = tokens[rows].masked_fill(rows < 0, IGNORED)
    # Spare rows are spread out: their gradients (of 0) would otherwise queue up to be added to one row.
    rows = torch.where(rows < 0, torch.arange(len(rows), device=ids.device), rows)
    scale = token_scale(masked, cumulative, segment)
    return _Masks(masked, scale, positions, segment, rows, targets)


def _field(bits: Tensor, shift: int, width: int) -> Tensor:
    """Return ``width`` bits of a hash, from the bit ``shift`` on."""
    return (bits >> shift) & ((1 << width) - 1)


def _share(share: float, width: int) -> int:
    """Return the bound below which a number of ``width`` random bits lies with this probability."""
    return round(share * (1 << width))


def _placed(ids: Tensor, cumulative: Tensor) -> _Placed:
    """Return the tokens of a pack and the proteins that they belong to."""
    places = torch.arange(len(ids), dtype=cumulative.dtype, device=ids.device)
    # A token belongs to the first segment that ends behind it; empty segments end before. The first bound is
    # 0, so it counts for every token. All bounds are searched, because Inductor's search on a GPU ignores
    # where a view such as cumulative[1:] begins (torch 2.11).
    segment = torch.searchsorted(cumulative, places, right=True) - 1
    positions = (places - cumulative[segment]).long()
    return _Placed(ids.long(), positions, segment)


def token_scale(tokens: Tensor, cumulative: Tensor, segment: Tensor) -> Tensor:
    """Return the factors on the embeddings by ESM-2's token dropout per protein, (T,) fp32.

    <mask> counts as dropped (factor 0); the other tokens are scaled by (1 - 0.12) / (1 - share of <mask>
    in the protein, CLS and EOS counted), as in transformers' ``EsmEmbeddings``.

    Args:
        tokens: (T,) ids after masking.
        cumulative: (S + 1,) bounds of the segments.
        segment: (T,) number of each token's segment.
    """
    lengths = cumulative.diff()
    is_mask = tokens == MASK
    # (S,) exact: integers. Inductor has no atomic addition of 64 bits, and would sort them in many launches.
    num_masked = torch.zeros_like(lengths).index_add_(0, segment, is_mask.int())
    # A protein of masks only has nothing left to scale.
    kept_share = (1 - num_masked / lengths.clamp(min=1)).clamp(min=1e-6)
    scale = ((1 - TRAINED_MASK_RATIO) / kept_share)[segment]
    return scale.masked_fill(is_mask | (tokens == PAD), 0.0)
