"""Files of BioNeMo: exports beside the prepared data, and checkpoints in ``<run>/bionemo/checkpoints``.

Standard library only.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from seqlm.launch.progress import (
    BIONEMO_CHECKPOINTS,
    bionemo_checkpoints,
    steps_of,
    unfinished_mark,
)
from seqlm.training.whole_file import write_whole

EXPERIMENT = BIONEMO_CHECKPOINTS.parts[0]
"""Folder within the run's folder."""
CONTEXT = "context"
WEIGHTS = "weights"
"""Folders in every checkpoint of NeMo 2."""
ADAPTER_FILE = "adapter_metadata.json"
"""File that names the base checkpoint of adapter weights (NeMo's ``WrappedAdapterIO``)."""
BASE_MODEL = "model_ckpt_path"
"""Key of the base checkpoint in that file."""
_LAST = "-last"
"""Suffix of checkpoints from which NeMo's AutoResume continues. The others are those with the lowest loss."""


def checkpoints_folder(run_dir: Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return run_dir / BIONEMO_CHECKPOINTS


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Return the complete checkpoint of the last step, or None if there is none."""
    return max(
        bionemo_checkpoints(run_dir), key=lambda path: (steps_of(path), path.name), default=None
    )


def make_resumable(run_dir: Path, base_model: str | None) -> None:
    """Repair checkpoints so that NeMo's AutoResume can continue. No other process may write them meanwhile.

    * AutoResume fails if the only checkpoint is incomplete, as after a kill during the first save. Such
      checkpoints are deleted.
    * AutoResume reads the frozen weights from the path in the adapters' file. BioNeMo writes "None" there,
      because it reads them from ``base_model`` itself. The path is corrected.

    Args:
        run_dir: folder of the run.
        base_model: checkpoint with the frozen weights of a run with adapters; None for other runs.
    """
    whole = [path for path in bionemo_checkpoints(run_dir) if path.name.endswith(_LAST)]
    if not whole:
        for path in checkpoints_folder(run_dir).glob(f"*{_LAST}"):
            shutil.rmtree(path)
            unfinished_mark(path).unlink(missing_ok=True)
    for path in whole:
        file = path / WEIGHTS / ADAPTER_FILE
        if base_model is None or not file.exists():
            continue
        found = json.loads(file.read_text())
        if not Path(found[BASE_MODEL]).is_dir():
            write_whole(file, json.dumps(found | {BASE_MODEL: str(Path(base_model).resolve())}))


@dataclass(frozen=True)
class ExportFiles:
    """Files of an export in ``folder``."""

    folder: Path

    @property
    def facts(self) -> Path:
        """File that records the source and the contents of the export."""
        return self.folder / "export.json"

    def clusters(self, split: str) -> Path:
        """Parquet file with the ids of clusters.

        Training has lists of all members in ``ur90_id``, other splits have one member each in ``ur50_id``.
        """
        return self.folder / f"{split}_clusters.parquet"

    def proteins(self, split: str) -> Path:
        """SQLite file. Its table ``protein`` has the columns ``id`` and ``sequence``."""
        return self.folder / f"{split}.db"

    def table(self, split: str) -> Path:
        """CSV file of a task with the columns ``id``, ``sequences`` and ``labels``.

        BioNeMo's inference reads that of the split ``test``.
        """
        return self.folder / f"{split}.csv"


def export_files(data_path: str | Path) -> ExportFiles:
    """Return the files of the export beside a run's ``data.path``."""
    path = Path(data_path)
    return ExportFiles(path.with_name(f"{path.name}-bionemo"))
