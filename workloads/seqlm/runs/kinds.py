"""Kind of a run: what differs between pre-training, a task and questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these bring torch and matplotlib
    from seqlm.training.data.manifest import Manifest
    from seqlm.training.objective import Objective
    from seqlm.training.processes import Processes
    from seqlm.training.records import Split
    from seqlm.training.report.run_report import ReportContents

    from .run_file import RunFile


@dataclass(frozen=True, kw_only=True)
class RunKind:
    """Functions of one kind of run; their first argument is the run file.

    The packages of the models export their kinds, and ``seqlm.commands.kinds`` has the table. The functions
    import what they need when they are called: importing all takes seconds, and most stages need one of them.
    """

    name: str
    """Name of the kind in lists of runs."""
    key_scores: tuple[str, ...]
    """Names of results and evaluations. Lists of runs show the first one that a run has."""
    objective: Callable[[RunFile], Objective]
    """Returns the objective. ValueError for data or weights that do not fit the configuration."""
    prepare: Callable[[RunFile], Manifest]
    """Fetches and prepares the data; ``seqlm.commands.kinds.prepare`` first checks the place."""
    is_prepared: Callable[[RunFile], bool]
    """Whether the data that the run file describes are prepared; the sources may be gone."""
    paths_read: Callable[[RunFile], list[str]]
    """Files and folders that ``prepare`` reads, besides what it fetches or the code brings."""
    score: Callable[[RunFile, Processes], dict[str, Any]]
    """Scores of the run's model, or of ``inference.model``, on a split; every process calls it. ValueError if
    there is no such model, or no such split in the prepared data."""
    report: Callable[[], ReportContents]
    """Sections of the report."""
    check_start: Callable[[RunFile], None] = lambda config: None
    """ValueError for a model that a run cannot start from, before processes start."""
    counted: Callable[[RunFile, Split | None], list[str]] = lambda config, split: []
    """Returns lines with the numbers of records that are used and left out: of a split of the prepared data,
    or, without a split, of the sources. The data are prepared."""
    records: str = "proteins"
    """Word for the records of the data."""
    tokens: str = "residues"
    """Word for the tokens of the data."""
