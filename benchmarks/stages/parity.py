"""Stage 1: attention, model, kernels and inference against dense and transformers' arithmetic."""

import math
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from benchmarks.case import Case, Line, Settings

TESTS = Path(__file__).parents[2] / "tests/gpu"
TOLERANCE = ", tolerance"
"""End of the name of a tolerance that a test records beside a figure."""
OUTCOMES = {"skipped": "skipped", "failure": "failed", "error": "error"}
"""Outcome of a test by the element of JUnit XML that it contains."""


def cases(settings: Settings) -> list[Case]:
    """Return one case for each file of tests."""
    return [
        # Measured on an H200, beside each other and warm-ups.
        Case("parity", "-", "attention", "tests", seconds=17, gigabytes=4, is_timed=False),
        Case("parity", "-", "model", "tests", seconds=43, gigabytes=4, is_timed=False),
        Case("parity", "-", "kernels", "tests", seconds=65, gigabytes=8, is_timed=False),
    ]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Run the GPU tests ``test_gpu_<contestant>.py`` in this process.

    Returns:
        Outcomes of the tests as ``tests``, each with its message unless it passed, and with the errors and
        tolerances that it recorded. The verdict is ``missed`` if a test failed, or if all were skipped on a
        GPU.
    """
    import pytest  # only the stages with tests need it

    # The tests' conftest reads the variable when pytest imports it.
    os.environ["REHEARSE_GPU_TESTS"] = str(int(settings.rehearsal))
    with TemporaryDirectory(prefix="gpu-tests-") as folder:
        report = Path(folder) / "report.xml"
        file = TESTS / f"test_gpu_{case.contestant}.py"
        status = pytest.main(["-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(file)])
        if not report.exists():
            raise RuntimeError(
                f"{file}: pytest ended with status {status} and wrote no report; see its output"
            )
        tests = outcomes(report)
    found = {test["outcome"] for test in tests.values()}
    is_good = not {"failed", "error"} & found and ("passed" in found or settings.rehearsal)
    return {"tests": tests, "verdict": "passed" if is_good else "missed"}


def outcomes(report: Path) -> dict[str, dict[str, Any]]:
    """Read the tests of a file of JUnit XML by name."""
    tests: dict[str, dict[str, Any]] = {}
    for element in ElementTree.parse(report).iter("testcase"):
        test: dict[str, Any] = {"outcome": "passed", "seconds": float(element.get("time", "0"))}
        for kind, outcome in OUTCOMES.items():
            problem = element.find(kind)
            if problem is not None:
                test |= {"outcome": outcome, "message": problem.get("message", "")}
        for item in element.iter("property"):
            name = item.get("name", "")
            value = item.get("value", "")
            try:
                # A test may record the same figure several times. The worst counts.
                test[name] = max(float(value), test.get(name, -math.inf))
            except ValueError:
                test[name] = value
        tests[element.get("name", "")] = test
    return tests


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per file of tests, with the figure that came closest to its tolerance."""
    found: list[dict[str, str]] = []
    for line in lines:
        tests = line["figures"]["tests"]
        passed = [name for name, test in tests.items() if test["outcome"] == "passed"]
        found.append(
            {
                "tests": f"`tests/gpu/test_gpu_{line['contestant']}.py`",
                "passed": f"{len(passed)} of {len(tests)}",
                "closest to its tolerance": closest(tests),
                "verdict": line["verdict"],
            }
        )
    return found


def closest(tests: dict[str, dict[str, Any]]) -> str:
    """Return the recorded figure that used the largest part of its tolerance, with both."""
    found: list[tuple[float, str]] = []
    for test in tests.values():
        for name, figure in test.items():
            tolerance = test.get(f"{name}{TOLERANCE}")
            if tolerance:
                text = f"{name}: {figure:.1e}, tolerance {tolerance:.1e}"
                found.append((figure / tolerance, text))
    return max(found)[1] if found else "-"
