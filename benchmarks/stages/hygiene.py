"""Stage 2: whether training waits for the device, compiles again, grows, resumes, and survives a bad loss."""

from benchmarks.case import Case, Settings
from benchmarks.stages.parity import run as run


def cases(settings: Settings) -> list[Case]:
    return [Case("hygiene", "8M", "hygiene", "tests", 60), Case("hygiene", "150M", "memory", "tests", 30)]
