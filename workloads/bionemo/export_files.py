"""Where an export for BioNeMo is, beside the prepared data that it was made of."""

from __future__ import annotations

from pathlib import Path

SUFFIX = "-bionemo"
FACTS_FILE = "export.json"


class ExportFiles:
    """Files of an export in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = folder / FACTS_FILE
        """What the export was made of, and what is in it."""
        self.train_clusters = folder / "train_clusters.parquet"
        """``ur90_id`` is a list of the ids of a cluster's members."""
        self.train_proteins = folder / "train.db"
        """SQLite; the table ``protein`` has ``id`` and ``sequence``."""
        self.validation_clusters = folder / "validation_clusters.parquet"
        """``ur50_id`` is the id of one protein of each cluster."""
        self.validation_proteins = folder / "validation.db"
        self.train_table = folder / "train.csv"
        """CSV of a task: ``id``, ``sequences``, ``labels``."""
        self.validation_table = folder / "validation.csv"
        self.test_table = folder / "test.csv"
        """For BioNeMo's inference; its entry point for training does not read it."""


def export_files(data_path: str | Path) -> ExportFiles:
    """Return the files of the export beside a run's ``data.path``."""
    path = Path(data_path)
    return ExportFiles(path.with_name(path.name + SUFFIX))
