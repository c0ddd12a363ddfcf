"""Stage 2: tests of waiting, recompilation, memory, resumption, bad losses and CUDA graphs in training."""

from benchmarks.case import Case, Settings
from benchmarks.stages.parity import rows as rows
from benchmarks.stages.parity import run as run


def cases(settings: Settings) -> list[Case]:
    return [
        # Measured on an H200, beside each other and warm-ups.
        Case("hygiene", "8M", "hygiene", "tests", seconds=47, gigabytes=8, is_timed=False),
        Case("hygiene", "8M", "steps", "tests", seconds=33, gigabytes=8, is_timed=False),
        Case("hygiene", "150M", "memory", "tests", seconds=31, gigabytes=20, is_timed=False),
    ]
