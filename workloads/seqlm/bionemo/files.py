"""Files of BioNeMo: exports beside the prepared data, and checkpoints in ``<run>/bionemo/checkpoints``.

Standard library alone.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from seqlm.launch.progress import BIONEMO_CHECKPOINTS, bionemo_checkpoints, steps_of, unfinished_mark
from seqlm.training.whole_file import write_whole

EXPERIMENT = BIONEMO_CHECKPOINTS.parts[0]
"""Folder below the run's."""
CONTEXT, WEIGHTS = "context", "weights"
"""Folders in every checkpoint of NeMo 2."""
ADAPTER_FILE, BASE_MODEL = "adapter_metadata.json", "model_ckpt_path"
"""File that names the base checkpoint of adapter weights (NeMo's ``WrappedAdapterIO``)."""
_LAST = "-last"
"""Suffix of checkpoints from which NeMo's AutoResume continues. Others are the best by their loss."""


def checkpoints_folder(run_dir: Path) -> Path:
    return run_dir / BIONEMO_CHECKPOINTS


def newest_checkpoint(run_dir: Path) -> Path | None:
    """Return the complete checkpoint of the last step, or None if there is none."""
    return max(bionemo_checkpoints(run_dir), key=lambda path: (steps_of(path), path.name), default=None)


def make_resumable(run_dir: Path, base_model: str | None) -> None:
    """Repair what would stop NeMo's AutoResume. No other process may write checkpoints meanwhile.

    It refuses to start if a run has only an unfinished checkpoint to resume from, as after a kill
    during the first save. And it looks for the frozen weights where the adapters' file says, which says
    "None", for BioNeMo reads them from ``base_model`` by itself.
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
