"""Launches of the attention kernels, from tensors to grids. Only this module and the kernels import Triton.

Shapes: T tokens, C channels, H heads, D head size, N tiles.
"""

import math

import torch
import triton
from torch import Tensor

from . import attention_kernels
from .tiles import TILINGS

LOG2_E = math.log2(math.e)
LEAST_WIDTH = 16
"""Least number of columns of a product on tensor cores."""
ROTATED_ROWS = 32
ROTATED_PAIRS = 64
"""Rows and pairs of numbers that a program rotates."""
ROTATION_WARPS = 4


def rotate_and_join(
    queries: Tensor, keys: Tensor, values: Tensor, cos: Tensor, sin: Tensor, head_size: int
) -> Tensor:
    """Return rotated queries and keys, and values, side by side as a new tensor (T, 3 C).

    Args:
        queries: (T, C) queries before rotation, and likewise keys and values.
        keys: (T, C).
        values: (T, C).
        cos: (T, 1, D / 2) fp32 cosines of the rotary angles.
        sin: (T, 1, D / 2) fp32 sines.
        head_size: D.
    """
    num_tokens, width = queries.shape
    out = queries.new_empty(num_tokens, 3 * width)
    _rotate((queries, keys, values), out, cos, sin, head_size)
    return out


def rotate_in_place(qkv: Tensor, cos: Tensor, sin: Tensor, head_size: int) -> None:
    """Rotate the queries and keys of a joined tensor (T, 3 C)."""
    queries, keys, _ = qkv.chunk(3, dim=-1)
    _rotate((queries, keys), qkv, cos, sin, head_size)


def _rotate(
    sources: tuple[Tensor, ...], out: Tensor, cos: Tensor, sin: Tensor, head_size: int
) -> None:
    """Launch the rotation of queries and keys into ``out``; a third source is copied there."""
    rowwise = [x if x.stride(1) == 1 else x.contiguous() for x in sources]
    queries, keys = rowwise[:2]
    values = rowwise[-1]  # without a third source nothing is read of it
    num_tokens, width = queries.shape
    grid = (
        len(sources),
        triton.cdiv(width // 2, ROTATED_PAIRS),
        triton.cdiv(num_tokens, ROTATED_ROWS),
    )
    attention_kernels.rotate[grid](
        queries,
        keys,
        values,
        queries.stride(0),
        keys.stride(0),
        values.stride(0),
        out,
        cos,
        sin,
        num_tokens,
        WIDTH=width,
        SIZE=head_size,
        ROWS=ROTATED_ROWS,
        PAIRS=ROTATED_PAIRS,
        num_warps=ROTATION_WARPS,
    )


def forward(
    qkv: Tensor, tiles: Tensor, head_size: int, *, keeps_sums: bool
) -> tuple[Tensor, Tensor]:
    """Return the attention's result (T, C), and the logarithms of the softmax's sums, (H, T).

    Args:
        qkv: (T, 3 C) with rotated queries and keys.
        tiles: ``AttentionTiles.forward``.
        head_size: D.
        keeps_sums: whether a backward pass follows. Without one, the sums are (H, 0).
    """
    num_tokens, heads = _shape(qkv, head_size)
    tuning = TILINGS[head_size].forward
    context = qkv.new_empty(num_tokens, heads * head_size)
    sums = qkv.new_empty(heads, num_tokens if keeps_sums else 0, dtype=torch.float32)
    num_tiles = tiles.shape[1]
    attention_kernels.forward[(num_tiles * heads,)](
        qkv,
        context,
        sums,
        tiles,
        num_tiles,
        num_tokens,
        head_size**-0.5 * LOG2_E,
        HEADS=heads,
        SIZE=head_size,
        PADDED=padded(head_size),
        QUERIES=tuning.queries,
        KEYS=tuning.keys,
        KEEPS=keeps_sums,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
    )
    return context, sums


def backward(
    grad: Tensor,
    qkv: Tensor,
    context: Tensor,
    sums: Tensor,
    cos: Tensor,
    sin: Tensor,
    tiles: Tensor,
    head_size: int,
    *,
    adds_columns: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of queries and keys before rotation and of values, and their sums over tokens.

    Args:
        grad: (T, C) gradient of the result.
        qkv: (T, 3 C) with rotated queries and keys.
        context: (T, C) result of ``forward``.
        sums: (H, T) sums of ``forward``.
        cos: (T, 1, D / 2) fp32 cosines of the rotary angles.
        sin: (T, 1, D / 2) fp32 sines.
        tiles: ``AttentionTiles.backward``.
        head_size: D.
        adds_columns: whether the sums over tokens, gradients of biases, are needed.

    Returns:
        (T, 3 C) gradients side by side, and (3 C,) fp32 sums, or (0,) if they are not needed.
    """
    num_tokens, heads = _shape(qkv, head_size)
    tilings = TILINGS[head_size]
    num_tiles = tiles.shape[1]
    dqkv = torch.empty_like(qkv)
    sums_and_deltas = sums.new_empty(heads, num_tokens, 2)
    columns = sums.new_empty(num_tiles if adds_columns else 0, qkv.shape[1])
    grad = grad.contiguous()
    sizes = {
        "HEADS": heads,
        "SIZE": head_size,
        "PADDED": padded(head_size),
        "ADDS_COLUMNS": adds_columns,
    }
    grid = (num_tiles * heads,)
    scales = (head_size**-0.5 * LOG2_E, head_size**-0.5)
    tuning = tilings.of_queries
    attention_kernels.of_queries[grid](
        qkv,
        context,
        grad,
        sums,
        sums_and_deltas,
        dqkv,
        columns,
        cos,
        sin,
        tiles,
        num_tiles,
        num_tokens,
        *scales,
        QUERIES=tuning.queries,
        KEYS=tuning.keys,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **sizes,
    )
    tuning = tilings.of_keys
    attention_kernels.of_keys[grid](
        qkv,
        grad,
        sums_and_deltas,
        dqkv,
        columns,
        cos,
        sin,
        tiles,
        num_tiles,
        num_tokens,
        *scales,
        QUERIES=tuning.queries,
        KEYS=tuning.keys,
        num_warps=tuning.warps,
        num_stages=tuning.stages,
        **sizes,
    )
    # A sum over tiles has an order that is the same at each call.
    return dqkv, columns.sum(0) if adds_columns else columns[:, 0]


def padded(head_size: int) -> int:
    """Return the number of columns with which a kernel computes a head."""
    return max(LEAST_WIDTH, triton.next_power_of_2(head_size))


def _shape(qkv: Tensor, head_size: int) -> tuple[int, int]:
    """Return the numbers of tokens and heads."""
    num_tokens, columns = qkv.shape
    return num_tokens, columns // (3 * head_size)
