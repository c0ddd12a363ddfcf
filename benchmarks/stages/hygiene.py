"""Stage 2: tests of waiting, recompilation, memory, resumption, bad losses and CUDA graphs in training."""

from benchmarks.case import Case, Settings
from benchmarks.stages.parity import rows as rows
from benchmarks.stages.parity import run as run


def cases(settings: Settings) -> list[Case]:
    return [
        Case("hygiene", "8M", "hygiene", "tests", seconds=45, gigabytes=8, is_timed=False),
        # Estimated: the following tests have never run on a GPU to their end.
        Case("hygiene", "8M", "steps", "tests", seconds=45, gigabytes=8, is_timed=False),
        Case("hygiene", "150M", "memory", "tests", seconds=30, gigabytes=20, is_timed=False),
    ]
