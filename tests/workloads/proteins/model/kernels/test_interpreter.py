"""bf16 in Triton's interpreter, on which the other tests of kernels rely."""

from __future__ import annotations

from tests.triton_interpreter import Interpreter
from tests.workloads.proteins.model.kernels import interpreted_bf16


def test_products_of_bf16_are_those_of_numbers(interpreter: Interpreter) -> None:
    assert interpreter(interpreted_bf16.product_error) < 1e-5


def test_casts_round_as_torch_does(interpreter: Interpreter) -> None:
    assert interpreter(interpreted_bf16.cast_errors) == (0, 0)
