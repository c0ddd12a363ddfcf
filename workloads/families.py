"""Model families: the one place that knows which package a run file belongs to.

Functions are named, not imported: importing them all takes seconds, and most stages need one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.run_file import RunFile
from workloads.training.data.manifest import MANIFEST_FILE, Manifest
from workloads.training.data.workspace import check_place

if TYPE_CHECKING:  # these bring torch and matplotlib
    from workloads.training.objective import Objective
    from workloads.training.processes import Processes
    from workloads.training.report.contents import ReportContents


@dataclass(frozen=True)
class Family:
    """Functions of one kind of run, as ``module:name`` below ``workloads``."""

    objective: str
    """(run file) -> Objective."""
    prepare: str
    """(run file) -> Manifest; fetches and prepares the data."""
    is_prepared: str
    """(run file) -> bool, without the sources, which may be gone since."""
    paths_read: str
    """(run file) -> files and folders that ``prepare`` reads, besides what it fetches."""
    score: str
    """(run file, processes) -> scores of the model on a split."""
    report: str
    """() -> ReportContents."""
    check_start: str = ""
    """(run file) -> None; ValueError for a model that cannot be started from. Empty: training finds out."""
    records: str = "proteins"
    tokens: str = "residues"


PRETRAINING = Family(
    objective="esm2.pretraining:Pretraining",
    prepare="esm2.data.run_data:prepare_proteins",
    is_prepared="esm2.data.run_data:is_prepared",
    paths_read="esm2.data.run_data:paths_read",
    score="esm2.evaluation:score_model",
    report="training.report.contents:ReportContents",
    check_start="esm2.pretrained:check_start",
)
FINE_TUNING = Family(
    objective="esm2.finetune.objective:FineTuning",
    prepare="esm2.finetune.prepare:prepare_table",
    is_prepared="esm2.finetune.prepare:is_prepared",
    paths_read="esm2.finetune.prepare:paths_read",
    score="esm2.finetune.objective:score_task",
    report="esm2.finetune.report:TaskContents",
    check_start="esm2.pretrained:check_start",
)
QUESTIONS = Family(
    objective="causal_lm.objective:CausalLM",
    prepare="causal_lm.prepare:prepare_chat",
    is_prepared="causal_lm.prepare:is_prepared",
    paths_read="causal_lm.table:paths_read",
    score="causal_lm.objective:score_chat",
    report="causal_lm.report:AnswerContents",
    records="conversations",
    tokens="tokens",
)


def family_of(config: RunFile) -> Family:
    return _family(task=config.task, chat=config.chat)


def objective(config: RunFile) -> Objective:
    """Return the objective of the run.

    Raises:
        ValueError: for data or weights that do not fit the configuration.
    """
    made: Objective = _function(family_of(config).objective)(config)
    return made


def check_start(config: RunFile) -> None:
    """Raise ValueError for a model to start from that is known to be wrong before processes start."""
    if name := family_of(config).check_start:
        _function(name)(config)


def prepare(config: RunFile) -> Manifest:
    """Fetch and prepare the run's data, or return at once if ``data.path`` holds the result.

    Raises:
        ValueError: if they cannot be had, or other data are in their place.
    """
    out = Path(config.data.path)
    if not (out / MANIFEST_FILE).exists():
        check_place(out)  # before a download of hours
    manifest: Manifest = _function(family_of(config).prepare)(config)
    return manifest


def is_prepared(config: RunFile) -> bool:
    """Tell whether data are there that were made of what the run file names, in the way it says."""
    return bool(_function(family_of(config).is_prepared)(config))


def paths_read(config: RunFile) -> list[str]:
    """Files and folders that preparing a run's data reads, besides what it fetches or the code brings."""
    paths: list[str] = _function(family_of(config).paths_read)(config)
    return paths


def score(config: RunFile, here: Processes) -> dict[str, Any]:
    """Scores of the run's model, or of the one that ``inference.model`` names; every process calls it.

    Raises:
        ValueError: if there is no such model, or no such split in the prepared data.
    """
    scores: dict[str, Any] = _function(family_of(config).score)(config, here)
    return scores


def report_contents(config: Mapping[str, Any]) -> ReportContents:
    """Return the report sections of the run's family, for the run's ``config.yaml``."""
    family = _family(task=config.get("task"), chat=config.get("chat"))
    contents: ReportContents = _function(family.report)()
    return contents


def _family(*, task: object, chat: object) -> Family:
    if chat:
        return QUESTIONS
    return FINE_TUNING if task else PRETRAINING


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(import_module(f"workloads.{module}"), attribute)
    return function
