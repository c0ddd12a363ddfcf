"""Decisions on kernels, and messages between several GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.expected import EXPECTED
from benchmarks.scaling_process import counted
from benchmarks.stages.kernels import decision, gain_of, rows
from seqlm.training.kernels import ATTENTION, GRAPH, PRODUCTS


def gain(name: str, size: str, gained: list[float]) -> dict[str, Any]:
    return gain_of(name, size, [100.0] * len(gained), [100.0 - ms for ms in gained])


def test_gain_by_round_beside_the_expected_one() -> None:
    found = gain_of(ATTENTION, "8M", [30.0, 31.0, 30.0, 32.0], [23.0, 23.0, 22.5, 24.0])
    assert found["gain_ms"] == {"median": pytest.approx(7.75), "min": 7.0, "max": 8.0}
    assert found["spread_ms"] == 1.0
    assert found["expected_ms"] == EXPECTED[ATTENTION, "8M"].ms_per_pack
    assert gain(GRAPH, "650M", [0.1])["expected_ms"] is None


@pytest.mark.parametrize(
    ("at_8m", "at_650m", "expected"),
    [
        # Expected are 8.0 and 9.9 ms.
        ([7.0, 7.2, 7.1, 7.0], [0.0, 0.1, 0.0, -0.1], "stays"),
        ([1.0, 1.0, 1.1, 1.0], [7.0, 7.0, 7.1, 7.2], "stays"),
        ([5.0, 5.1, 5.0, 5.1], [6.0, 6.0, 6.1, 6.0], "removed"),  # less than two thirds
        ([6.0, 14.0, 7.0, 2.0], [6.0, 6.0, 6.1, 6.0], "removed"),  # within the spread
        ([8.0, 8.0, 8.1, 8.0], [-2.0, -2.1, -2.0, -2.0], "removed"),  # loses at the other size
        ([8.0, 8.0, 8.1, 8.0], [-0.2, 0.3, -0.1, -0.2], "stays"),  # loses less than the spread
    ],
)
def test_a_kernel_stays_if_it_gains_at_one_size_and_loses_at_none(
    at_8m: list[float], at_650m: list[float], expected: str
) -> None:
    by_size = {"8M": gain(ATTENTION, "8M", at_8m), "650M": gain(ATTENTION, "650M", at_650m)}
    assert decision(by_size) == expected


def test_without_an_expected_gain_a_size_only_has_a_veto() -> None:
    good = gain(GRAPH, "8M", [0.5, 0.5, 0.51, 0.5])
    assert decision({"8M": good, "650M": gain(GRAPH, "650M", [5.0, 5.0])}) == "stays"
    assert decision({"8M": good, "650M": gain(GRAPH, "650M", [-5.0, -5.1])}) == "removed"


def test_a_decision_needs_both_sizes() -> None:
    figures = {"kernels": {PRODUCTS: gain(PRODUCTS, "8M", [1.0, 1.1])}, "missing": {}}
    (row,) = rows([{"size": "8M", "figures": figures}])
    assert (row["kernel"], row["decision"], row["gain, ms"]) == (PRODUCTS, "open", "1.05")


class Message:
    def __init__(self, name: str, shapes: list[list[int]], dtypes: list[str]) -> None:
        self._record = (name, shapes, dtypes)

    def name(self) -> str:
        return self._record[0]

    def shapes(self) -> list[list[int]]:
        return self._record[1]

    def dtypes(self) -> list[str]:
        return self._record[2]


def test_messages_are_counted_by_collective() -> None:
    events = [
        Message("nccl:all_reduce", [[10, 20]], ["float"]),
        Message("nccl:all_reduce", [[7]], ["c10::BFloat16"]),
        Message("gloo:all_gather", [[3]], ["long int"]),
        Message("aten::mm", [[3, 4], [4, 5]], ["float", "float"]),
    ]
    assert counted(events) == {
        "nccl:all_reduce": {"count": 2, "bytes": 814},
        "gloo:all_gather": {"count": 1, "bytes": 24},
    }
    with pytest.raises(ValueError, match="no size is known for numbers of type 'c10::Float8'"):
        counted([Message("nccl:all_reduce", [[1]], ["c10::Float8"])])
