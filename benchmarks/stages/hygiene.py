"""Stage 2: tests of waiting, recompilation, memory growth, resumption and bad losses in training."""

from benchmarks.case import Case, Settings
from benchmarks.stages.parity import rows as rows
from benchmarks.stages.parity import run as run


def cases(settings: Settings) -> list[Case]:
    return [
        Case("hygiene", "8M", "hygiene", "tests", seconds=60),
        Case("hygiene", "150M", "memory", "tests", seconds=30),
    ]
