"""Comparison of kernels with torch's, on random operands, before a run uses them.

Shapes: T tokens, C channels, D head size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seqlm.proteins.model.attention import packed_attention, rotate
from seqlm.training.layered_model import Segments

from .attention import attend, project_and_attend
from .tiles import attention_tiles

MOST_DIFFERENCE = 1e-2
"""Largest allowed norm of a difference from torch's result, relative to the norm of that result. Two kernels
that round to bf16 differ by up to 6e-3 (measured on an H200), and a wrong one by more than 0.1."""
DTYPE = torch.bfloat16
"""Type of the compared products: kernels are used with no other."""
SEED = 0
BIAS_SIZE = 0.1
"""Size of biases, relative to that of products. Large ones of values cancel in the gradients of scores, and
leave the rounding errors of both kernels."""
OPERANDS = ("queries", "keys", "values")


@dataclass(frozen=True)
class AttentionShape:
    """Attention of a layer, and the pack with which it is compared."""

    width: int
    """Channels of the layer, C."""
    head_size: int
    """Size of a head, D."""
    is_projected: bool
    """Whether the product to queries, keys and values is a part of the operator."""
    has_bias: bool
    """Whether that product has a bias."""
    cos: Tensor
    """(T, 1, D / 2) fp32 cosines of the rotary angles."""
    sin: Tensor
    """(T, 1, D / 2) fp32 sines of the rotary angles."""
    segments: Segments
    """Boundaries of the proteins."""


def problem_of(compare: Callable[[], Mapping[str, float]]) -> str | None:
    """Return why a kernel must not be used; None if it agrees with torch's.

    Args:
        compare: function that returns the relative difference of each result, by the result's name.
    """
    try:
        differences = compare()
    except Exception as error:  # whatever a compiler or a driver raises, torch's kernels remain
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"
    for name, difference in differences.items():
        if not difference <= MOST_DIFFERENCE:  # also if it is not a number
            return (
                f"its {name} differs from torch's by {difference:.2g} (relative norm; allowed is "
                f"{MOST_DIFFERENCE:g})"
            )
    return None


def relative_difference(found: Tensor, expected: Tensor) -> Tensor:
    """Return the norm of a difference, relative to the norm of what is expected, as a () fp32 tensor."""
    expected = expected.float()
    return (found.float() - expected).norm() / expected.norm()


def attention_differences(shape: AttentionShape) -> dict[str, float]:
    """Return the differences of attention's result and, unless they are disabled, its gradients."""
    tiles = attention_tiles(shape.segments, len(shape.cos), shape.head_size)
    # The generator of the run stays as it is.
    generator = torch.Generator(shape.cos.device).manual_seed(SEED)
    leaves = _leaves(shape, generator)
    operands = list(leaves.values())
    if shape.is_projected:
        x, weight, *biases = operands
        bias = biases[0] if biases else None
        ours = project_and_attend(x, weight, bias, shape.cos, shape.sin, tiles, shape.head_size)
        joined = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
        queries, keys, values = joined.chunk(3, dim=-1)
    else:
        queries, keys, values = operands
        ours = attend(queries, keys, values, shape.cos, shape.sin, tiles, shape.head_size)
    torchs = _torchs_attention(queries, keys, values, shape)
    differences = {"result": relative_difference(ours, torchs)}
    if torch.is_grad_enabled():
        upstream = _drawn(torchs.shape, generator).to(DTYPE)
        found = torch.autograd.grad(ours, operands, upstream)
        expected = torch.autograd.grad(torchs, operands, upstream)
        for name, a, b in zip(leaves, found, expected, strict=True):
            differences |= _of_gradient(name, a, b)
    # One copy to the host for all of them.
    together = torch.stack(list(differences.values())).tolist()
    return dict(zip(differences, together, strict=True))


def _torchs_attention(
    queries: Tensor, keys: Tensor, values: Tensor, shape: AttentionShape
) -> Tensor:
    """Return torch's attention (T, C) of operands before rotation, (T, C) each.

    Angles are 0 for ``packed_attention``, which rotates in bf16 on a CPU. The kernels rotate in fp32.
    """
    q, k, v = (one.unflatten(-1, (-1, shape.head_size)) for one in (queries, keys, values))
    q = rotate(q, shape.cos, shape.sin)
    k = rotate(k, shape.cos, shape.sin)
    no_cos = torch.ones_like(shape.cos)
    no_sin = torch.zeros_like(shape.sin)
    return packed_attention(q, k, v, no_cos, no_sin, shape.segments).flatten(1)


def _leaves(shape: AttentionShape, generator: torch.Generator) -> dict[str, Tensor]:
    """Return random operands by their names, of the sizes that numbers have behind a layer norm."""
    tokens = (len(shape.cos), shape.width)
    if not shape.is_projected:
        leaves = {name: _drawn(tokens, generator).to(DTYPE) for name in OPERANDS}
    else:
        weights = _drawn((3 * shape.width, shape.width), generator) * shape.width**-0.5
        leaves = {"input": _drawn(tokens, generator).to(DTYPE), "weights": weights.to(DTYPE)}
        if shape.has_bias:
            leaves["biases"] = _drawn((3 * shape.width,), generator) * BIAS_SIZE
    return {name: one.requires_grad_() for name, one in leaves.items()}


def _drawn(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return fp32 numbers of a standard normal distribution."""
    return torch.randn(tuple(sizes), generator=generator, device=generator.device)


def _of_gradient(name: str, found: Tensor, expected: Tensor) -> dict[str, Tensor]:
    """Return the difference of a gradient; the parts of joined weights are compared one by one.

    Biases are compared together, because the exact gradient of the keys' is almost 0.
    """
    if name != "weights":
        return {f"gradient of {name}": relative_difference(found, expected)}
    parts = zip(OPERANDS, found.chunk(3), expected.chunk(3), strict=True)
    return {f"gradient of weights of {part}": relative_difference(a, b) for part, a, b in parts}
