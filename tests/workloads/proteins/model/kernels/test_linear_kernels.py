"""Packed models with cast weights and the GELU's kernel, alone and beside attention's, on the CPU."""

from __future__ import annotations

import pytest

from seqlm.training.kernels import ACTIVATION, ATTENTION, PRODUCTS
from tests.triton_interpreter import Interpreter
from tests.workloads.proteins.model.kernels import linear_cases as cases

OF_ESM2 = [
    frozenset({ACTIVATION}),
    frozenset({PRODUCTS, ACTIVATION}),
    frozenset({ATTENTION, PRODUCTS}),
    frozenset({ATTENTION, PRODUCTS, ACTIVATION}),
]
OF_ESMC = frozenset({ATTENTION, PRODUCTS})
ALL = OF_ESM2[-1]


@pytest.mark.parametrize("kernels", OF_ESM2, ids=lambda names: "+".join(sorted(names)))
def test_esm2_with_kernels_computes_the_same(
    interpreter: Interpreter, kernels: frozenset[str]
) -> None:
    found = interpreter(cases.differences, "esm2", kernels, recomputes=False)
    assert len(found) > 30
    assert max(found.values()) < 2e-4, max(found, key=lambda one: found[one])


@pytest.mark.parametrize(("family", "kernels"), [("esm2", ALL), ("esmc", OF_ESMC)])
def test_recomputed_layers_compute_the_same(
    interpreter: Interpreter, family: str, kernels: frozenset[str]
) -> None:
    found = interpreter(cases.differences, family, kernels, recomputes=True)
    assert max(found.values()) < 2e-4, max(found, key=lambda one: found[one])


@pytest.mark.parametrize(("family", "kernels"), [("esm2", ALL), ("esmc", OF_ESMC)])
def test_bf16_is_as_exact_as_with_torchs_kernels(
    interpreter: Interpreter, family: str, kernels: frozenset[str]
) -> None:
    with_kernels, without = interpreter(cases.errors_in_bf16, family, kernels)
    assert with_kernels < 1.2 * without


@pytest.mark.parametrize(("family", "kernels", "graphs"), [("esm2", ALL, 2), ("esmc", OF_ESMC, 3)])
def test_a_layer_is_one_graph(
    interpreter: Interpreter, family: str, kernels: frozenset[str], graphs: int
) -> None:
    """The last layer differs from the others. ESMC's first one does, too: it looks up its operands."""
    after_one, after_all, difference = interpreter(cases.compiled, family, kernels)
    assert (after_one, after_all) == (graphs, graphs)
    assert difference < 1e-3


@pytest.mark.long
def test_inductor_adds_to_gradients_in_place(interpreter: Interpreter) -> None:
    kernels = frozenset({ATTENTION, PRODUCTS})
    graphs, _, difference = interpreter(cases.compiled, "esm2", kernels, backend="inductor")
    assert graphs == 2
    assert difference < 1e-2


@pytest.mark.parametrize(("family", "kernels"), [("esm2", ALL), ("esmc", OF_ESMC)])
def test_right_kernels_have_no_problem(
    interpreter: Interpreter, family: str, kernels: frozenset[str]
) -> None:
    assert interpreter(cases.problems, family, kernels, None) == {}


@pytest.mark.parametrize(
    ("fault", "kernel", "expected"),
    [
        (
            "weights",
            PRODUCTS,
            "its gradient of the weights of operands differs from torch's by 0.05",
        ),
        ("gelu", ACTIVATION, "its result differs from torch's by 0.05"),
        ("raises", ACTIVATION, "RuntimeError: no kernel image"),
    ],
)
def test_a_wrong_kernel_is_a_problem(
    interpreter: Interpreter, fault: str, kernel: str, expected: str
) -> None:
    """The other kernels are used."""
    found = interpreter(cases.problems, "esm2", frozenset({PRODUCTS, ACTIVATION}), fault)
    assert found.keys() == {kernel}
    assert expected in found[kernel]
