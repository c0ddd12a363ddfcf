"""Cases of the acceptance run, their settings, and helpers of the stages.

The process that starts all others imports this module, so torch is not imported here.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

Line = dict[str, Any]
"""Result of a case as the acceptance run writes it: ``stage``, ``size``, ``contestant``, ``shape``,
``device``, ``verdict``, ``seconds``, ``figures`` and more."""


OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Parts of messages of exceptions for a lack of memory."""
INCOMPLETE = "incomplete"
"""Verdict of a case that has not ended, or was ended before it had measured everything."""
UNFINISHED = ("failed", INCOMPLETE, "skipped")
"""Verdicts of cases that are run again."""
GPUS_VARIABLE = "BENCHMARK_GPUS"
"""Environment variable with the GPUs of this run, which only ``scaling`` uses together."""
AUTO_KERNELS = "auto"
"""Value of ``--kernels`` with which ``train.kernels`` of the run decides."""


@dataclass(frozen=True)
class Case:
    """One measurement with a deadline."""

    stage: str
    """Name of the module in ``benchmarks/stages``."""
    size: str
    """Published size of a model, or ``-`` if the case has none."""
    contestant: str
    """Measured program or kernel, such as ``ours``, ``lora`` or ``varlen``."""
    shape: str
    """Settings that distinguish the case, such as ``tokens_per_pack=16384``, separated by commas."""
    seconds: float
    """Expected wall time in seconds on one H200 after the warm-up, or on one core for cases of CPUs. Without
    a warm-up, it includes imports and compilation."""
    warm_seconds: float = 0.0
    """Expected wall time in seconds of the warm-up with empty caches: imports, and one pass of everything
    that is compiled. 0 stands for a case without a warm-up."""
    gigabytes: float = 0.0
    """Largest memory of the GPU that the case and its warm-up need."""
    process: str = ""
    """Name of the process that the case shares with others; a case without one has its own process."""
    is_timed: bool = True
    """Whether the case needs the machine for itself. Others run beside the warm-ups."""
    slows_process: bool = False
    """Whether later times of the same process would be too long, as they are after a profiler has run."""

    @property
    def id(self) -> str:
        return f"{self.stage}/{self.size}/{self.contestant}/{self.shape}"

    @property
    def values(self) -> dict[str, str]:
        """Settings of the shape by name."""
        return dict(part.split("=", 1) for part in self.shape.split(",") if "=" in part)


def ignore(figures: dict[str, Any]) -> None:
    """Write no figures."""


@dataclass(frozen=True)
class Settings:
    """Conditions shared by all cases of a run."""

    data: Path
    """Prepared folder of proteins."""
    device: "torch.device"
    rehearsal: bool
    """Use shapes that a CPU finishes in seconds, to show that every case runs."""
    lines: tuple[Path, ...] = ()
    """Files with the lines of the cases that have ended."""
    window: float = 0.0
    """Length of a measured window in seconds. A window ends with a whole step, so it may be longer."""
    kernels: str = AUTO_KERNELS
    """Kernels of our trainer: ``auto``, ``off``, or names of ``training/kernels.py`` separated by commas."""
    is_warm_up: bool = False
    """Measure windows of one step, whose figures are thrown away, so that everything is compiled."""
    record: Callable[[dict[str, Any]], None] = ignore
    """Function that writes the figures measured so far, which survive the end of the process."""

    @property
    def as_on_gpu(self) -> bool:
        """Whether the cases of a GPU are listed, which a rehearsal does on a CPU, too."""
        return self.device.type == "cuda" or self.rehearsal

    @property
    def is_short(self) -> bool:
        """Whether windows have one step, because their figures are not used."""
        return self.rehearsal or self.is_warm_up


class Stage(Protocol):
    """Module of ``benchmarks/stages`` with the cases of one stage.

    It may also have ``rows(lines: list[Line]) -> list[dict[str, str]]``, which returns the rows of its table
    from the lines of one device, with cells by heading. Without it, the table has one row per case with all
    scalar figures.
    """

    def cases(self, settings: Settings) -> list[Case]:
        """Return the cases in the order in which they run."""

    def run(self, case: Case, settings: Settings) -> dict[str, Any]:
        """Run one case in the current process.

        Returns:
            Figures as JSON values. ``verdict`` is ``passed``, ``missed``, ``measured`` (the default),
            ``out of memory``, or ``skipped`` with the reason as ``error``. It is ``failed``, with an
            ``error``, for figures of a case that failed in part. A case that takes several windows passes
            what it has to ``settings.record`` after each of them.
        """


def judged(*, has_goal: bool, is_met: bool) -> str:
    """Return the verdict of a case."""
    if not has_goal:
        return "measured"
    return "passed" if is_met else "missed"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def prepare_unless_there(data: Path) -> None:
    """Prepare the embedded proteins in a folder that does not exist."""
    if not data.exists():
        from seqlm.commands.kinds import prepare
        from seqlm.runs.run_file import RunFile
        from seqlm.training.config import DataConfig

        prepare(RunFile(name="benchmark", data=DataConfig(path=str(data))))


def read_lines(files: Iterable[Path]) -> list[Line]:
    """Return the lines of result files in their order; files that do not exist have none.

    A line that was cut off, because the run was killed while writing it, is left out.
    """
    found: list[Line] = []
    for file in files:
        if not file.exists():
            continue
        for text in file.read_text().splitlines():
            try:
                found.append(json.loads(text))
            except ValueError:
                continue
    return found


def case_id(line: Line) -> str:
    return f"{line['stage']}/{line['size']}/{line['contestant']}/{line['shape']}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out, on the device or on the host."""
    # torch's exception goes by its name, because torch may not have been imported.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(part in str(error) for part in OUT_OF_MEMORY)
