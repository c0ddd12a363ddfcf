"""Attention of the kernels against dense attention in fp64, run in the interpreter's process.

Shapes: T tokens, C channels, I inputs of the product, H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from seqlm.proteins.model.kernels.attention import attend, project_and_attend
from seqlm.proteins.model.kernels.tiles import AttentionTiles, attention_tiles
from seqlm.training.layered_model import Segments

HEADS = 2
INPUTS = 20
FLOOR = 0.1
"""Part of a gradient's mean size below which an error is measured against it: one residue has no gradients
by its query and key."""


class Drawn:
    """Random operands of a pack, and its tiles."""

    def __init__(self, head_size: int, lengths: Sequence[int], dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.head_size = head_size
        self.dtype = dtype
        self.num_tokens = sum(lengths)
        self.width = HEADS * head_size
        self.bounds = torch.tensor([0, *lengths]).cumsum(0).int()
        positions = torch.cat([torch.arange(length) for length in lengths])
        frequencies = 10_000.0 ** (-torch.arange(0, head_size, 2) / head_size)
        self.angles = positions[:, None, None].double() * frequencies  # (T, 1, D / 2)
        segments = Segments(self.bounds, max(lengths))
        self.tiles: AttentionTiles = attention_tiles(segments, self.num_tokens, head_size)
        self.upstream = torch.randn(self.num_tokens, self.width).to(dtype)

    @property
    def cos(self) -> Tensor:
        return self.angles.cos().float()

    @property
    def sin(self) -> Tensor:
        return self.angles.sin().float()

    def dense(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the attention (T, C) of (T, C) operands in fp64, one protein after another."""
        queries, keys, values = (
            x.double().unflatten(-1, (HEADS, self.head_size)) for x in (queries, keys, values)
        )
        queries = _turned(queries, self.angles)
        keys = _turned(keys, self.angles)
        results = []
        for start, stop in pairwise(self.bounds.tolist()):
            here = slice(start, stop)
            scores = torch.einsum("ihd,jhd->hij", queries[here], keys[here])
            weights = (scores * self.head_size**-0.5).softmax(-1)
            results.append(torch.einsum("hij,jhd->ihd", weights, values[here]))
        return torch.cat(results).flatten(1)

    def worst(self, found: Tensor, expected: Tensor) -> float:
        """Return the largest relative error of a protein, so that one wrong one among many shows."""
        assert torch.isfinite(found).all()
        found = found.double()
        floor = FLOOR * expected.square().mean().sqrt()
        errors = []
        for start, stop in pairwise(self.bounds.tolist()):
            if start == stop:
                continue
            here = slice(start, stop)
            size = torch.maximum(expected[here].norm(), floor * expected[here].numel() ** 0.5)
            errors.append(float((found[here] - expected[here]).norm() / size))
        return max(errors)


def operand_errors(
    head_size: int, lengths: Sequence[int], dtype: torch.dtype, *, factor: float = 1.0
) -> dict[str, float]:
    """Return the errors of ``attend``'s result and gradients; ``factor`` enlarges queries and keys."""
    drawn = Drawn(head_size, lengths, dtype)
    operands = [torch.randn(drawn.num_tokens, drawn.width) for _ in range(3)]
    for one in operands[:2]:
        one *= factor
    given = [one.to(dtype).requires_grad_() for one in operands]
    exact = [one.detach().double().requires_grad_() for one in given]
    found = attend(*given, drawn.cos, drawn.sin, drawn.tiles, head_size)
    expected = drawn.dense(*exact)
    gradients = torch.autograd.grad(found, given, drawn.upstream)
    exact_gradients = torch.autograd.grad(expected, exact, drawn.upstream.double())
    errors = {"result": drawn.worst(found.detach(), expected.detach())}
    for name, a, b in zip(("queries", "keys", "values"), gradients, exact_gradients, strict=True):
        errors[name] = drawn.worst(a, b)
    return errors


def projection_errors(
    head_size: int, lengths: Sequence[int], dtype: torch.dtype, *, has_bias: bool
) -> dict[str, float]:
    """Return the relative errors of ``project_and_attend``'s result and gradients."""
    drawn = Drawn(head_size, lengths, dtype)
    operands = {
        "input": torch.randn(drawn.num_tokens, INPUTS).to(dtype),
        "weights": (torch.randn(3 * drawn.width, INPUTS) * INPUTS**-0.5).to(dtype),
    }
    if has_bias:
        operands["biases"] = torch.randn(3 * drawn.width)
    given = [one.requires_grad_() for one in operands.values()]
    exact = [one.detach().double().requires_grad_() for one in given]
    x, weight, *biases = given
    bias = biases[0] if has_bias else None
    found = project_and_attend(x, weight, bias, drawn.cos, drawn.sin, drawn.tiles, head_size)
    # The kernels get the product in its type, so the exact one is rounded to it, too.
    joined = torch.nn.functional.linear(*exact)
    expected = drawn.dense(*joined.chunk(3, dim=-1))
    gradients = torch.autograd.grad(found, given, drawn.upstream)
    exact_gradients = torch.autograd.grad(expected, exact, drawn.upstream.double())
    errors = {"result": drawn.worst(found.detach(), expected.detach())}
    for name, a, b in zip(operands, gradients, exact_gradients, strict=True):
        assert a.dtype == operands[name].dtype
        errors[name] = float((a.double() - b).norm() / b.norm())
    return errors


def results_without_gradients(head_size: int, lengths: Sequence[int]) -> tuple[bool, list[int]]:
    """Return whether a forward pass alone gives the same, and the sizes of what it keeps."""
    drawn = Drawn(head_size, lengths, torch.float32)
    operands = [torch.randn(drawn.num_tokens, drawn.width) for _ in range(3)]
    arguments = (*operands, drawn.cos, drawn.sin, drawn.tiles.forward, drawn.tiles.backward)
    alone, *kept = torch.ops.seqlm.attend(*arguments, head_size, False)
    with_gradients, *_ = torch.ops.seqlm.attend(*arguments, head_size, True)
    return torch.equal(alone, with_gradients), [one.numel() for one in kept]


def operator_is_well_formed(head_size: int, lengths: Sequence[int]) -> None:
    """Check the operator by torch's own tests.

    No input changes, fake results have the right shapes, gradients are registered, and all of it is traced.

    Raises:
        torch.testing._internal.optests.generate_tests.OpCheckError: if a check fails.
    """
    drawn = Drawn(head_size, lengths, torch.float32)
    rest = (drawn.cos, drawn.sin, drawn.tiles.forward, drawn.tiles.backward, head_size, True)
    x = torch.randn(drawn.num_tokens, INPUTS, requires_grad=True)
    weight = torch.randn(3 * drawn.width, INPUTS, requires_grad=True)
    bias = torch.randn(3 * drawn.width, requires_grad=True)
    torch.library.opcheck(torch.ops.seqlm.project_and_attend.default, (x, weight, bias, *rest))


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Return (T, H, D) rotated by angles (T, 1, D / 2)."""
    first, second = x.chunk(2, dim=-1)
    cos = angles.cos()
    sin = angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
