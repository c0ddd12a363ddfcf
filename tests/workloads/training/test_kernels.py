"""Selection of kernels, and the fallback to torch's."""

from collections.abc import Iterator

import pytest
import torch

from seqlm.training import kernels
from seqlm.training.config import KernelMode
from seqlm.training.kernels import ATTENTION, GRAPH, KERNELS, agreed, listed, selected

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def with_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    yield


def names(mode: KernelMode, device: torch.device = CUDA, **options: bool) -> frozenset[str]:
    return selected(mode, KERNELS, device, torch.bfloat16, **options)


def test_auto_uses_what_has_proven_faster_and_on_uses_all() -> None:
    assert names("auto") == {name for name, kernel in KERNELS.items() if kernel.in_auto}
    assert names("on") == set(KERNELS)
    assert names("off") == set()


def test_inference_uses_the_kernels_of_a_forward_pass() -> None:
    expected = {name for name, kernel in KERNELS.items() if kernel.for_inference}
    assert names("on", for_inference=True) == expected


def test_no_kernel_without_cuda_or_bf16() -> None:
    assert names("on", torch.device("cpu")) == set()
    assert selected("on", KERNELS, CUDA, torch.float32) == set()


def test_no_triton_kernel_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not any(KERNELS[name].needs_triton for name in names("on"))
    assert GRAPH in names("on")


def test_a_model_without_kernels_uses_none() -> None:
    assert selected("on", (), CUDA, torch.bfloat16) == set()


def test_a_problem_is_reported_once_with_the_kernel_and_its_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert agreed({ATTENTION: "its output differs by 0.02"}) == {
        ATTENTION: "its output differs by 0.02"
    }
    printed = capsys.readouterr().err
    assert printed.count("warning:") == 1
    assert "kernel attention" in printed and "its output differs by 0.02" in printed


def test_names_are_listed_in_the_order_of_the_table() -> None:
    assert listed(reversed(KERNELS)) == ", ".join(KERNELS)
    assert listed(()) == "none"
