"""Record of a migration: the steps that are done, and requests of AWS that are in progress.

Every step compares before it acts, so that a lost record costs time and nothing else.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqlm.training.strict_yaml import shown
from seqlm.training.whole_file import write_whole

FOLDER = Path("migrations")
"""Folder of the records, below the present folder."""


@dataclass
class Record:
    """Record of one migration, written after each change."""

    path: Path
    source: str
    """Name of the old cluster."""
    target: str
    """Name of the new cluster."""
    done: dict[str, str] = field(default_factory=dict)
    """Time at which each step ended for the last time, by step."""
    tasks: dict[str, str] = field(default_factory=dict)
    """Ids of FSx's tasks that were started, by step."""
    found: dict[str, str] = field(default_factory=dict)
    """Result of each step, by step."""

    def finish(self, step: str, result: str) -> None:
        """Note the end of a step, and its result."""
        self.done[step] = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        self.found[step] = result
        self._write()

    def start_task(self, step: str, task: str) -> None:
        """Note a request of AWS that continues if this program ends."""
        self.tasks[step] = task
        self._write()

    def end_task(self, step: str) -> None:
        """Forget a request that has ended."""
        self.tasks.pop(step, None)
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        values = {name: value for name, value in asdict(self).items() if name != "path"}
        write_whole(self.path, json.dumps(values, indent=2, sort_keys=True) + "\n")


def open_record(path: Path, source: str, target: str) -> Record:
    """Return the record of a migration; an empty one if it has not begun.

    Raises:
        ValueError: if the file is not such a record, or one of other clusters.
    """
    if not path.exists():
        return Record(path, source, target)
    try:
        values: Mapping[str, Any] = json.loads(path.read_text())
        record = Record(path, **values)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"--record: got {path}, which is no record of a migration ({shown(str(error))}); name another "
            "file, or delete it: every step finds out itself what is left"
        ) from None
    if (record.source, record.target) != (source, target):
        raise ValueError(
            f"--record: {path} is that of {shown(record.source)} to {shown(record.target)}; name another file"
        )
    return record
