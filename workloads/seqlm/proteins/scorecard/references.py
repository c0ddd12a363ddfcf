"""File of references: scores of released models on the bundled and prepared data.

The file that is shipped (``references.json``) is empty, because no released model has been scored yet.
``scorecard.record`` adds the models of a scorecard to the file that ``scorecard.references`` names. A value
is shown only beside scores of the same name, data and settings (``data_sha256``).
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from seqlm.training.data.small_file import MAX_CONFIG_BYTES, read_small
from seqlm.training.strict_yaml import shown
from seqlm.training.whole_file import write_whole

from .row import Row

SHIPPED = Path(__file__).parent / "references.json"


@dataclass(frozen=True)
class ReferenceScore:
    """Score of a released model."""

    name: str
    value: float
    data_sha256: str
    """Hash of the data and settings."""


@dataclass(frozen=True)
class Reference:
    """Scores of a released model."""

    model: str
    """Hub id, or folder."""
    revision: str | None
    """Commit on the hub; None for a folder."""
    fingerprint: str
    """Hash of the weights."""
    precision: str
    date: str
    """Day of the scores."""
    scores: tuple[ReferenceScore, ...]

    def value_of(self, row: Row) -> float | None:
        """Return the score on the same data as that of a row; None if there is none."""
        for one in self.scores:
            if one.name == row.name and one.data_sha256 == row.data_sha256:
                return one.value
        return None


def read_references(path: Path) -> list[Reference]:
    """Read a file of references.

    Raises:
        ValueError: if it does not exist, or is no such file.
    """
    try:
        document = json.loads(read_small(path, MAX_CONFIG_BYTES))
        if not isinstance(document, list):
            raise TypeError(f"expected a list, got {type(document).__name__}")
        return [_reference(one) for one in document]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = shown(f"{type(error).__name__}: {error}")
        raise ValueError(
            f"scorecard.references: {path} is no file of references ({reason}); give a file that "
            "scorecard.record has written"
        ) from None


def _reference(entry: dict[str, Any]) -> Reference:
    scores = tuple(
        ReferenceScore(str(one["name"]), float(one["value"]), str(one["data_sha256"]))
        for one in entry["scores"]
    )
    return Reference(
        model=str(entry["model"]),
        revision=entry["revision"],
        fingerprint=str(entry["fingerprint"]),
        precision=str(entry["precision"]),
        date=str(entry["date"]),
        scores=scores,
    )


def reference_of(model: str, fingerprint: str, precision: str, rows: Sequence[Row]) -> Reference:
    """Return the entry of a model that was scored today.

    Args:
        model: hub id or folder.
        fingerprint: hash of its weights.
        precision: type of the arithmetic.
        rows: scores of the model. Those of data that are neither bundled nor prepared are left out.
    """
    scores = tuple(
        ReferenceScore(row.name, row.value, row.data_sha256) for row in rows if row.data_sha256
    )
    today = datetime.now(UTC).date().isoformat()
    return Reference(model, _revision(model), fingerprint, precision, today, scores)


def _revision(model: str) -> str | None:
    """Return the commit of a model of the hub; None for a folder."""
    if Path(model).is_dir():
        return None
    file = try_to_load_from_cache(model, "config.json")
    return Path(file).parent.name if isinstance(file, str) else None


def record(path: Path, new: Sequence[Reference]) -> None:
    """Add models to a file of references. An entry with the same weights is replaced.

    Raises:
        ValueError: if the file cannot be read or written.
    """
    fingerprints = {one.fingerprint for one in new}
    old = read_references(path) if path.exists() else []
    kept = [one for one in old if one.fingerprint not in fingerprints]
    document = [dataclasses.asdict(one) for one in [*kept, *new]]
    try:
        write_whole(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise ValueError(
            f"scorecard.references: {path} cannot be written: {error.strerror}"
        ) from None
