"""Table of the kinds of runs, and the preparation and report that all kinds share."""

from pathlib import Path

from seqlm.language.kinds import QUESTIONS
from seqlm.proteins.kinds import PRETRAINING, TASK
from seqlm.runs.kinds import RunKind
from seqlm.runs.run_file import RunFile
from seqlm.training.data.manifest import MANIFEST_FILE, Manifest
from seqlm.training.data.workspace import check_place
from seqlm.training.strict_yaml import read_mapping
from seqlm.training.tracking.run_log import CONFIG_FILE

RUN_KINDS = (PRETRAINING, TASK, QUESTIONS)


def run_kind(*, task: object, chat: object) -> RunKind:
    """Return the kind of a run, from its sections."""
    if chat:
        return QUESTIONS
    return TASK if task else PRETRAINING


def kind_of(config: RunFile) -> RunKind:
    """Return the kind of a run."""
    return run_kind(task=config.task, chat=config.chat)


def paths_read(config: RunFile) -> list[str]:
    """Return the files and folders that the preparation of a run's data reads."""
    return kind_of(config).paths_read(config)


def prepare(config: RunFile) -> Manifest:
    """Fetch and prepare the run's data, or return at once if ``data.path`` holds the result.

    Raises:
        ValueError: if the data cannot be fetched or prepared, or the folder holds other data.
    """
    out = Path(config.data.path)
    if not (out / MANIFEST_FILE).exists():
        check_place(out)  # before a download of hours
    return kind_of(config).prepare(config)


def report(run_dir: Path) -> Path:
    """Write the report of a run of any kind.

    Raises:
        ValueError: if the folder holds no record of a run, or a damaged one.
    """
    from seqlm.training.report.run_report import write_report  # imports matplotlib

    config = read_mapping(run_dir / CONFIG_FILE)
    return write_report(
        run_dir, run_kind(task=config.get("task"), chat=config.get("chat")).report()
    )
