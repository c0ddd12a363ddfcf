"""Attention in Triton against dense attention in fp64, through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from seqlm.proteins.model.kernels.tiles import TILINGS
from tests.triton_interpreter import Interpreter
from tests.workloads.proteins.model.kernels import attention_cases as cases

EDGES = (1, 64, 0, 65, 63, 0, 0, 3, 127, 40, 40, 0, 0)
"""One residue; a tile of 64, one less and one more; one less than two; two segments of padding; empty ones in
between and behind."""
FEW = (70, 1, 0, 9)
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Largest relative error of a protein. bf16 rounds each of several operands by up to 2^-9."""


@pytest.mark.parametrize("head_size", TILINGS)
def test_result_and_gradients_are_those_of_dense_attention(
    interpreter: Interpreter, head_size: int
) -> None:
    errors = interpreter(cases.operand_errors, head_size, EDGES, torch.float32)
    assert set(errors) == {"result", "queries", "keys", "values"}
    assert max(errors.values()) < TOLERANCES[torch.float32], errors


@pytest.mark.parametrize("head_size", TILINGS)
def test_bf16_is_rounded_a_few_times(interpreter: Interpreter, head_size: int) -> None:
    errors = interpreter(cases.operand_errors, head_size, FEW, torch.bfloat16)
    assert max(errors.values()) < TOLERANCES[torch.bfloat16], errors


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("head_size", "has_bias"), [(16, True), (24, True), (64, False)])
def test_gradients_of_the_product_reach_input_weights_and_biases(
    interpreter: Interpreter, head_size: int, has_bias: bool, dtype: torch.dtype
) -> None:
    errors = interpreter(cases.projection_errors, head_size, FEW, dtype, has_bias=has_bias)
    assert ("biases" in errors) == has_bias
    assert max(errors.values()) < TOLERANCES[dtype], errors


def test_scores_of_a_thousand_neither_overflow_nor_vanish(interpreter: Interpreter) -> None:
    """Queries and keys of 30 give scores of up to +-1000 or more at a head size of 16."""
    errors = interpreter(cases.operand_errors, 16, FEW, torch.float32, factor=30.0)
    assert max(errors.values()) < 1e-3, errors


def test_a_forward_pass_alone_keeps_nothing(interpreter: Interpreter) -> None:
    is_same, kept = interpreter(cases.results_without_gradients, 24, FEW)
    assert is_same
    assert kept == [0, 0]


def test_the_operator_satisfies_torchs_own_checks(interpreter: Interpreter) -> None:
    interpreter(cases.operator_is_well_formed, 16, (5, 3))
