"""Kind of runs that fine-tune a causal language model on questions.

The functions import what they need when they are called: importing all takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlm.runs.kinds import RunKind

if TYPE_CHECKING:
    from seqlm.runs.run_file import RunFile
    from seqlm.training.data.manifest import Manifest
    from seqlm.training.objective import Objective
    from seqlm.training.processes import Processes
    from seqlm.training.records import Split
    from seqlm.training.report.run_report import ReportContents


def _objective(config: RunFile) -> Objective:
    from .objective import CausalLM

    return CausalLM(config)


def _prepare(config: RunFile) -> Manifest:
    from .prepare import prepare_chat

    return prepare_chat(config)


def _is_prepared(config: RunFile) -> bool:
    from .prepare import is_prepared

    return is_prepared(config)


def _paths_read(config: RunFile) -> list[str]:
    from .table import paths_read

    return paths_read(config)


def _score(config: RunFile, here: Processes) -> dict[str, Any]:
    from .objective import score_chat

    return score_chat(config, here)


def _counted(config: RunFile, split: Split | None) -> list[str]:
    from .prepare import counts_line

    return [counts_line(Path(config.data.path), split)]


def _report() -> ReportContents:
    from .report import AnswerContents

    return AnswerContents()


QUESTIONS = RunKind(
    name="questions",
    key_scores=("perplexity", "eval_loss"),
    objective=_objective,
    prepare=_prepare,
    is_prepared=_is_prepared,
    paths_read=_paths_read,
    score=_score,
    report=_report,
    counted=_counted,
    records="conversations",
    tokens="tokens",
)
