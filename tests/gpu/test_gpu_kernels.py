"""Kernels of this project on CUDA against fp32, torch's kernels and themselves.

A rehearsal runs those in Triton through Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from seqlm.proteins.model.kernels.comparison import MOST_DIFFERENCE
from seqlm.proteins.model.kernels.tiles import TILINGS
from seqlm.training.kernels import ATTENTION, selected
from tests.gpu import kernel_cases as cases
from tests.gpu import rehearsal
from tests.gpu.conftest import IS_REHEARSAL, Within
from tests.gpu.dense_attention import BACKWARD, FORWARD
from tests.gpu.drawn import Scale
from tests.triton_interpreter import interpreter_process

ADDED_IN_FP32 = 2e-4
"""Tensor cores add up products of bf16 numbers in fp32, in an order of their own. An error of some 1e-5 is
expected for sums of 8,192 tokens. Gradients that left a product in bf16 would differ by 1e-3."""
ROUNDED_ONCE = 2e-3
"""bf16 rounds a number by up to 2^-9 (1.95e-3) of it."""
AS_GOOD_AS_TORCHS = 2.0
"""Error with the kernels over that of torch's, both against fp32. Both round to bf16 about as often, in
places that differ, and by chance either is better at the worst protein or tensor."""
# The interpreter is slow. Tests on the CPU cover all head sizes (tests/workloads/proteins/model/kernels).
HEAD_SIZES = (24,) if IS_REHEARSAL else tuple(TILINGS)
INFERENCE_HEAD_SIZES = (16,) if IS_REHEARSAL else (16, 64)
MODES = {"compiled": True} if IS_REHEARSAL else {"compiled": True, "eager": False}

Compute = Callable[..., Any]


@pytest.fixture(scope="module")
def scale() -> Scale:
    if not IS_REHEARSAL:
        return Scale()
    return replace(Scale.rehearsal(), tokens=128, max_residues=62, tokens_of_a_run=128)


@pytest.fixture(scope="module")
def compute() -> Iterator[Compute]:
    """Function that calls another with arguments, where kernels run."""
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if not IS_REHEARSAL:
        yield lambda function, *arguments, **keywords: function(*arguments, **keywords)
        return
    with interpreter_process() as interpreter:
        interpreter(rehearsal.begin)
        yield interpreter


def check(within: Within, errors: Mapping[str, float]) -> None:
    """Check output and gradients of attention in bf16."""
    for name, error in errors.items():
        within(name, error, FORWARD if name == "output" else BACKWARD)


def check_compared(within: Within, errors: Mapping[str, cases.Compared]) -> None:
    for name, error in errors.items():
        within(name, error.ours, AS_GOOD_AS_TORCHS * error.torchs)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_attention_equals_dense_attention(
    head_size: int, compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    check(within, compute(cases.attention_errors, head_size, scale, device))


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_attention_equals_that_of_torch(
    head_size: int, compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    """Within what a run allows at its start."""
    found = compute(cases.differences_from_torch, head_size, scale, device)
    for name, error in found.items():
        within(name, error, MOST_DIFFERENCE)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_gradients_reach_input_weights_and_biases(
    head_size: int, compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    check(within, compute(cases.projection_errors, head_size, scale, device))


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_equal_passes_are_equal_bit_for_bit(
    head_size: int, compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    for name, number in compute(cases.changed_numbers, head_size, scale, device).items():
        within(f"numbers of {name} that changed", number, 0)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_empty_segments_change_nothing(
    head_size: int, compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    """The same tiles are computed in the same order, at other places of the list."""
    for name, change in compute(cases.changed_by_empty_segments, head_size, scale, device).items():
        within(name, change, 0.0)


def test_weight_gradients_are_added_up_in_fp32(
    compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    errors = compute(cases.product_errors, scale, device, has_gelu=False)
    within("output", errors["output"], FORWARD)
    within("gradient of the input", errors["gradient of the input"], FORWARD)
    for name in ("gradient of the weights", "gradient of the biases"):
        within(name, errors[name], ADDED_IN_FP32)


def test_a_product_with_gelu_has_the_gradients_of_both(
    compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    check(within, compute(cases.product_errors, scale, device, has_gelu=True))


@pytest.mark.parametrize("columns", [1280, 33])
def test_gelu_is_rounded_once(
    columns: int, compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    """Also if a block of the kernel is not full."""
    errors = compute(cases.gelu_errors, scale.tokens + 3, columns, device)
    for name, error in errors.items():
        within(name, error, ROUNDED_ONCE)


@pytest.mark.parametrize("is_compiled", MODES.values(), ids=MODES)
def test_a_model_with_kernels_is_as_exact_as_without(
    is_compiled: bool, compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    """New weights, further packs and a pack of padding compile nothing."""
    errors, more_graphs = compute(cases.model_errors, scale, device, is_compiled=is_compiled)
    check_compared(within, errors)
    within("graphs more", more_graphs, 0)


def test_a_pack_of_padding_teaches_nothing(
    compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    within("gradient", compute(cases.largest_gradient_of_padding, scale, device), 0.0)


def test_a_run_uses_all_kernels(
    compute: Compute,
    device: torch.device,
    scale: Scale,
    record_property: Callable[[str, object], None],
) -> None:
    """``train.kernels: on`` selects them, and the check at the start of a run finds nothing."""
    problems, seconds = compute(cases.start_check, scale, device)
    record_property("seconds of the check with warm caches", seconds)
    assert problems == {}
    on_this_device = selected("on", cases.OF_A_MODEL, device, torch.bfloat16)
    assert on_this_device == (cases.OF_A_MODEL if device.type == "cuda" else frozenset())


@pytest.mark.parametrize("head_size", INFERENCE_HEAD_SIZES)
def test_answers_with_kernels_are_as_exact_as_without(
    head_size: int, compute: Compute, device: torch.device, scale: Scale, within: Within
) -> None:
    errors, kernels = compute(cases.inference_errors, head_size, scale, device)
    assert kernels == {ATTENTION}
    check_compared(within, errors)
