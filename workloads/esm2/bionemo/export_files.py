"""Where an export for BioNeMo is, beside the prepared data that it was made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SUFFIX = "-bionemo"
FACTS_FILE = "export.json"


@dataclass(frozen=True)
class ExportFiles:
    folder: Path

    @property
    def facts(self) -> Path:
        """What the export was made of, and what is in it."""
        return self.folder / FACTS_FILE

    @property
    def train_clusters(self) -> Path:
        """Parquet; ``ur90_id`` is a list of the ids of a cluster's members."""
        return self.folder / "train_clusters.parquet"

    @property
    def train_proteins(self) -> Path:
        """SQLite; the table ``protein`` has ``id`` and ``sequence``."""
        return self.folder / "train.db"

    @property
    def validation_clusters(self) -> Path:
        """Parquet; ``ur50_id`` is the id of one protein of each cluster."""
        return self.folder / "validation_clusters.parquet"

    @property
    def validation_proteins(self) -> Path:
        return self.folder / "validation.db"

    @property
    def train_table(self) -> Path:
        """CSV of a task: ``id``, ``sequences``, ``labels``."""
        return self.folder / "train.csv"

    @property
    def validation_table(self) -> Path:
        return self.folder / "validation.csv"

    @property
    def test_table(self) -> Path:
        """Of which BioNeMo's entry point reads nothing: for its inference."""
        return self.folder / "test.csv"


def export_files(data_path: str | Path) -> ExportFiles:
    """Beside a run's ``data.path``."""
    path = Path(data_path)
    return ExportFiles(path.with_name(path.name + SUFFIX))
