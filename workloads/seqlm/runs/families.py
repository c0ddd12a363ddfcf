"""Functions of each kind of run and of the commands of inference.

Functions are imported when they are called: importing all takes seconds, and most stages need one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these bring torch and matplotlib
    from seqlm.training.data.manifest import Manifest
    from seqlm.training.objective import Objective
    from seqlm.training.processes import Processes
    from seqlm.training.report.run_report import ReportContents


def lazy(name: str) -> Callable[..., Any]:
    """Return a function that imports ``module:name``, below ``seqlm``, when it is called."""
    module, _, attribute = name.partition(":")
    return lambda *arguments: getattr(import_module(f"seqlm.{module}"), attribute)(*arguments)


@dataclass(frozen=True)
class RunKind:
    """Functions of one kind of run; their first argument is the run file."""

    objective: Callable[[Any], Objective]
    """ValueError for data or weights that do not fit the configuration."""
    prepare: Callable[[Any], Manifest]
    """Fetches and prepares the data; ``run_kinds.prepare`` first checks the place."""
    is_prepared: Callable[[Any], bool]
    """Whether the data that the run file describes are prepared; the sources may be gone."""
    paths_read: Callable[[Any], list[str]]
    """Files and folders that ``prepare`` reads, besides what it fetches or the code brings."""
    score: Callable[[Any, Processes], dict[str, Any]]
    """Scores of the run's model, or of ``inference.model``, on a split; every process calls it. ValueError if
    there is no such model, or no such split in the prepared data."""
    report: Callable[[], ReportContents]
    """Sections of the report."""
    check_start: Callable[[Any], None] = lambda config: None
    """ValueError for a model that a run cannot start from, before processes start."""
    records: str = "proteins"
    tokens: str = "residues"


QUESTIONS = RunKind(
    objective=lazy("language.objective:CausalLM"),
    prepare=lazy("language.prepare:prepare_chat"),
    is_prepared=lazy("language.prepare:is_prepared"),
    paths_read=lazy("language.table:paths_read"),
    score=lazy("language.objective:score_chat"),
    report=lazy("language.report:AnswerContents"),
    records="conversations",
    tokens="tokens",
)
PROTEINS = RunKind(
    objective=lazy("proteins.pretraining.objective:Pretraining"),
    prepare=lazy("proteins.data.prepare:prepare_proteins"),
    is_prepared=lazy("proteins.data.prepare:is_prepared"),
    paths_read=lazy("proteins.data.prepare:paths_read"),
    score=lazy("proteins.pretraining.evaluation:score_model"),
    report=lazy("training.report.run_report:ReportContents"),
    check_start=lazy("proteins.model.pretrained:check_start"),
)
TASKS = RunKind(
    objective=lazy("proteins.finetune.objective:FineTuning"),
    prepare=lazy("proteins.finetune.prepare:prepare_table"),
    is_prepared=lazy("proteins.finetune.prepare:is_prepared"),
    paths_read=lazy("proteins.finetune.prepare:paths_read"),
    score=lazy("proteins.finetune.objective:score_task"),
    report=lazy("proteins.finetune.report:TaskContents"),
    check_start=lazy("proteins.model.pretrained:check_start"),
)


def run_kind(*, task: object, chat: object) -> RunKind:
    """Return the kind of a run, from its sections."""
    return QUESTIONS if chat else TASKS if task else PROTEINS
