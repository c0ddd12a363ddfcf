"""Kernels of the GELU through Triton's interpreter, against fp64."""

from __future__ import annotations

import pytest
import torch

from tests.triton_interpreter import Interpreter
from tests.workloads.proteins.model.kernels import gelu_cases as cases


def test_results_are_as_exact_as_torchs(interpreter: Interpreter) -> None:
    """The bounds are those of the module's docstring."""
    found = interpreter(cases.forward_errors)
    assert found.absolute < 2.2e-7
    assert found.in_tail < 1.6e-3
    torchs = interpreter(cases.forward_errors, of_torch=True)
    assert found.absolute < torchs.absolute
    assert found.in_tail < torchs.in_tail / 10


def test_the_derivative_is_exact(interpreter: Interpreter) -> None:
    found = interpreter(cases.slope_errors)
    assert found.absolute < 2.6e-7
    assert found.in_tail < 1e-4


@pytest.mark.parametrize("of_slope", [False, True])
def test_bf16_is_the_exact_result_rounded(interpreter: Interpreter, of_slope: bool) -> None:
    """An error of 2e-7 decides only for results that are close to the middle of two numbers."""
    assert interpreter(cases.misrounded, of_slope=of_slope) < 0.01


@pytest.mark.parametrize("shape", [(1, 1), (65, 300), (64, 256), (130, 257)])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-7), (torch.bfloat16, 3e-3)])
def test_shapes_that_are_no_multiples_of_a_block(
    interpreter: Interpreter, shape: tuple[int, int], dtype: torch.dtype, bound: float
) -> None:
    found = interpreter(cases.shape_errors, *shape, dtype)
    assert max(found.values()) < bound
    assert found["sums"] < 3e-7, "sums are not rounded to the type of the operands"


def test_special_numbers(interpreter: Interpreter) -> None:
    found, expected = interpreter(cases.special)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, equal_nan=True)
