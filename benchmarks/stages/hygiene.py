"""Stage 2: whether training waits for the device, compiles again, grows, resumes, and survives a bad loss."""

from __future__ import annotations

from typing import Any

from benchmarks.case import Case, Settings
from benchmarks.stages.parity import run_tests


def cases(settings: Settings) -> list[Case]:
    return [Case("hygiene", "8M", "hygiene", "tests", 60), Case("hygiene", "150M", "memory", "tests", 30)]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    return run_tests(case.contestant, settings)
