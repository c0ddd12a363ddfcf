"""Packed models that compute attention with the kernels, and the check at the start of a run."""

from __future__ import annotations

import pytest

from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.training.kernels import ACTIVATION, ATTENTION
from tests.triton_interpreter import Interpreter
from tests.workloads.proteins.model.kernels import model_cases as cases


@pytest.mark.parametrize(
    ("name", "recomputes"), [*((name, False) for name in MODEL_FAMILIES), ("esm2", True)]
)
def test_loss_and_gradients_are_those_of_torchs_attention(
    interpreter: Interpreter, name: str, recomputes: bool
) -> None:
    found = interpreter(cases.differences, name, recomputes=recomputes)
    assert len(found) > 30
    assert max(found.values()) < 2e-4, max(found, key=lambda one: found[one])


@pytest.mark.parametrize("name", MODEL_FAMILIES)
def test_bf16_is_as_exact_as_with_torchs_attention(interpreter: Interpreter, name: str) -> None:
    with_kernels, without = interpreter(cases.errors_in_bf16, name)
    assert with_kernels < 1.2 * without


def test_esm2_rotates_in_place_and_esmc_behind_its_norms(interpreter: Interpreter) -> None:
    each = {"rotate_in_place": 0, "rotate_and_join": 0, "forward": 2, "backward": 2}
    assert interpreter(cases.launches, "esm2") == each | {"rotate_in_place": 2}
    assert interpreter(cases.launches, "esmc") == each | {"rotate_and_join": 2}


@pytest.mark.parametrize(("name", "graphs"), [("esm2", 2), ("esmc", 3)])
def test_a_layer_is_one_graph(interpreter: Interpreter, name: str, graphs: int) -> None:
    """The last layer differs from the others. ESMC's first one, which looks up its operands, does so, too."""
    found, difference = interpreter(cases.compiled, name)
    assert found == graphs
    assert difference < 1e-3


@pytest.mark.parametrize("name", MODEL_FAMILIES)
def test_right_kernels_have_no_problem(interpreter: Interpreter, name: str) -> None:
    assert interpreter(cases.problems, name) == {}
    assert interpreter(cases.problems, name, forward_only=True) == {}
    assert interpreter(cases.generator_is_untouched, name)


def test_a_wrong_result_is_a_problem(interpreter: Interpreter) -> None:
    found = interpreter(cases.problems, "esm2", "forward")
    assert found.keys() == {ATTENTION}
    assert "its result differs from torch's by 0.05" in found[ATTENTION]


@pytest.mark.parametrize(
    ("name", "expected"), [("esm2", "gradient of input"), ("esmc", "gradient of queries")]
)
def test_a_wrong_gradient_is_a_problem_for_training_alone(
    interpreter: Interpreter, name: str, expected: str
) -> None:
    found = interpreter(cases.problems, name, "backward")
    assert f"its {expected} differs from torch's by 0.05" in found[ATTENTION]
    assert interpreter(cases.problems, name, "backward", forward_only=True) == {}


def test_a_kernel_that_raises_is_a_problem_of_one_line(interpreter: Interpreter) -> None:
    found = interpreter(cases.problems, "esm2", "raises")
    assert found == {ATTENTION: "RuntimeError: no kernel image"}


def test_kernels_are_launched_on_the_device_of_their_operands(interpreter: Interpreter) -> None:
    """Triton launches on the current device. A model may be on another one than the first GPU."""
    found = interpreter(cases.launches_by_device, frozenset({ATTENTION, ACTIVATION}))
    assert len(found) == 6
    for name, devices in found.items():
        assert set(devices) == {"cpu"}, name
