"""Paths of an export for BioNeMo, which is beside the prepared data that it was made from."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ExportFiles:
    """Files of an export in ``folder``."""

    folder: Path

    @property
    def facts(self) -> Path:
        """File that records the source and the contents of the export."""
        return self.folder / "export.json"

    def clusters(self, split: str) -> Path:
        """Parquet: ``ur90_id``, lists of ids of members, of training; else ``ur50_id``, one id of each."""
        return self.folder / f"{split}_clusters.parquet"

    def proteins(self, split: str) -> Path:
        """SQLite; the table ``protein`` has ``id`` and ``sequence``."""
        return self.folder / f"{split}.db"

    def table(self, split: str) -> Path:
        """CSV of a task: ``id``, ``sequences``, ``labels``; that of ``test`` is for BioNeMo's inference."""
        return self.folder / f"{split}.csv"


def export_files(data_path: str | Path) -> ExportFiles:
    """Return the files of the export beside a run's ``data.path``."""
    path = Path(data_path)
    return ExportFiles(path.with_name(f"{path.name}-bionemo"))
