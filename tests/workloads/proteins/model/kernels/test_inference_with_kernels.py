"""Inference with the attention kernels: answers, the check at the start, and what outputs record."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqlm.proteins.families.table import MODEL_FAMILIES
from tests.triton_interpreter import Interpreter
from tests.workloads.proteins.model.kernels import inference_cases as cases


@pytest.mark.parametrize("name", MODEL_FAMILIES)
def test_answers_are_those_without_kernels(interpreter: Interpreter, name: str) -> None:
    found = interpreter(cases.differences, name)
    assert found.keys() == cases.ANSWERS.keys()
    assert max(found.values()) < 1e-4, found


def test_kernels_that_cannot_be_launched_are_not_used(interpreter: Interpreter) -> None:
    assert interpreter(cases.kernels_of_a_faulty_machine) == frozenset()


def test_outputs_record_the_kernels(interpreter: Interpreter, tmp_path: Path) -> None:
    auto = interpreter(cases.summary, tmp_path, "auto")
    off = interpreter(cases.summary, tmp_path, "off")
    assert auto["kernels"] == "attention"
    assert off["kernels"] == "none"
    assert auto["key"] != off["key"], "the results differ"
