"""Kinds of runs of protein models: pre-training and tasks.

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


def _check_start(config: RunFile) -> None:
    from .model.pretrained import check_start

    check_start(config)


def _pretraining_objective(config: RunFile) -> Objective:
    from .pretraining.objective import Pretraining

    return Pretraining(config)


def _prepare_proteins(config: RunFile) -> Manifest:
    from .data.prepare import prepare_proteins

    return prepare_proteins(config)


def _proteins_are_prepared(config: RunFile) -> bool:
    from .data.prepare import is_prepared

    return is_prepared(config)


def _protein_paths(config: RunFile) -> list[str]:
    from .data.prepare import paths_read

    return paths_read(config)


def _score_masked_lm(config: RunFile, here: Processes) -> dict[str, Any]:
    from .pretraining.evaluation import score_model

    return score_model(config, here)


def _counted_proteins(config: RunFile, split: Split | None) -> list[str]:
    from .pretraining.evaluation import split_counts

    return [] if split is None else [one.line() for one in split_counts(config, split)]


def _pretraining_report() -> ReportContents:
    from .pretraining.report import ProteinContents

    return ProteinContents()


PRETRAINING = RunKind(
    name="pretraining",
    key_scores=("perplexity", "eval_loss"),
    objective=_pretraining_objective,
    prepare=_prepare_proteins,
    is_prepared=_proteins_are_prepared,
    paths_read=_protein_paths,
    score=_score_masked_lm,
    report=_pretraining_report,
    counted=_counted_proteins,
    check_start=_check_start,
)


def _task_objective(config: RunFile) -> Objective:
    from .finetune.objective import FineTuning

    return FineTuning(config)


def _prepare_table(config: RunFile) -> Manifest:
    from .finetune.prepare import prepare_table

    return prepare_table(config)


def _table_is_prepared(config: RunFile) -> bool:
    from .finetune.prepare import is_prepared

    return is_prepared(config)


def _table_paths(config: RunFile) -> list[str]:
    from .finetune.prepare import paths_read

    return paths_read(config)


def _score_task(config: RunFile, here: Processes) -> dict[str, Any]:
    from .finetune.objective import score_task

    return score_task(config, here)


def _counted_labels(config: RunFile, split: Split | None) -> list[str]:
    from .finetune.labelled import LabelledSplit
    from .finetune.prepared_counts import lines_of, split_counts

    if split is None:
        return lines_of(Path(config.data.path))
    labelled = LabelledSplit(config.data.path, split)
    return [one.line() for one in split_counts(labelled, config.model.max_residues)]


def _task_report() -> ReportContents:
    from .finetune.report import TaskContents

    return TaskContents()


TASK = RunKind(
    name="task",
    key_scores=("eval_spearman", "eval_jaccard", "eval_mcc", "eval_loss"),
    objective=_task_objective,
    prepare=_prepare_table,
    is_prepared=_table_is_prepared,
    paths_read=_table_paths,
    score=_score_task,
    report=_task_report,
    counted=_counted_labels,
    check_start=_check_start,
)
