"""Heartbeats, ``metrics.jsonl`` and MLflow of a training by BioNeMo, as our own trainer writes them.

Lightning calls the factories that installed packages name as entry points of ``CALLBACKS_GROUP``.
``registered`` makes such a package of this module, so that nothing of BioNeMo is changed.
"""

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from seqlm.runs.run_file import RunFile
from seqlm.training.heartbeat import beat
from seqlm.training.tracking.mirror import RunStatus
from seqlm.training.tracking.run_log import RunLog

from .command import step_proteins

CALLBACKS_GROUP = "lightning.pytorch.callbacks_factory"
"""Group of entry points (Lightning's ``callback_connector.py``)."""
PACKAGE = "esm2_run_record"
TRAIN_LOSS, LEARNING_RATE = "reduced_train_loss", "lr"
"""Names under which NeMo's strategy and its optimizer module log values."""
EVALUATED = {"val_loss": "eval_loss", "val_ppl": "perplexity", "val_acc": "eval_accuracy", "val_mse": "mse"}
"""Scores of BioNeMo's entry points, by our names."""
_current: Any = None


class Recorder:
    """Lightning's hooks, without its base class, which ``callbacks`` adds.

    Args:
        config: of the run.
        is_first: whether this process keeps the record; the others only say that they advance.
    """

    def __init__(self, config: RunFile, *, is_first: bool) -> None:
        self._config, self._is_first = config, is_first
        self._log: RunLog | None = None
        self._window = (time.monotonic(), 0)
        self._saved = -1
        self.step = 0
        """Optimizer steps that the run has made."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        beat("making its first step", slow=True)
        self.begin(int(trainer.global_step))

    def begin(self, step: int) -> None:
        """Open the record of a run that has completed this many steps."""
        self.step = step
        self._log = RunLog(
            self._config.run_dir,
            config=self._config.to_dict(),
            tracking=self._config.tracking,
            max_steps=self._config.train.max_steps,
            enabled=self._is_first,
        )
        lost = self._log.truncate_after(step)
        if step or lost:
            self._log.event(step, "resumed", lost_steps=lost)
        self._window = (time.monotonic(), step)

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        beat("training")
        self._end_step(trainer)

    def _end_step(self, trainer: Any) -> None:
        if self.step == int(trainer.global_step):
            return  # reported before
        self.step = int(trainer.global_step)
        if self._log is None or (self.step % self._config.train.log_every_steps and self.step != 1):
            return
        metrics, (started, before), now = trainer.callback_metrics, self._window, time.monotonic()
        found = {name: float(metrics[name]) for name in (TRAIN_LOSS, LEARNING_RATE) if name in metrics}
        self._log.train(
            self.step,
            loss=found.get(TRAIN_LOSS),
            learning_rate=found.get(LEARNING_RATE),
            proteins_per_second=(self.step - before) * step_proteins(self._config) / max(now - started, 1e-9),
        )
        self._window = (now, self.step)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        beat("evaluating", slow=True)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if self._log is None or trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics
        found = {ours: float(metrics[name]) for name, ours in EVALUATED.items() if name in metrics}
        self._log.evaluation(self.step, "validation", **found)
        # A checkpoint follows, and may be slow in coming.
        beat("saving", slow=True)
        self._window = (time.monotonic(), self.step)

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        beat("saving", slow=True)
        # At SIGTERM NeMo saves, and exits, before it reports the step's end.
        self._end_step(trainer)
        # For the last one and for the best one, which are two to Lightning.
        if self._log is not None and self._saved != self.step:
            self._log.event(self.step, "checkpoint begun")
            self._saved = self.step

    def close(self, status: RunStatus) -> None:
        """End the record, however the training ended."""
        beat("ending", slow=True)
        if self._log is not None:
            self._log.close(status)


def callbacks() -> list[Any]:
    """Make a callback for the training that ``registered`` is around. Lightning calls this factory."""
    if _current is None:
        return []
    base = importlib.import_module("lightning.pytorch.callbacks").Callback
    names = [name for name in dir(_current) if name.startswith("on_")]
    hooks = {name: staticmethod(getattr(_current, name)) for name in names}
    return [type("RunRecord", (base,), hooks)()]


@contextmanager
def registered(recorder: Any) -> Iterator[None]:
    """Make every Lightning trainer that is created meanwhile call the recorder's methods ``on_...``."""
    global _current
    with TemporaryDirectory(prefix="esm2-record-") as folder:
        about = Path(folder) / f"{PACKAGE}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[{CALLBACKS_GROUP}]\n{PACKAGE} = {__name__}:callbacks\n")
        sys.path.append(folder)
        _current = recorder
        try:
            yield
        finally:
            _current = None
            sys.path.remove(folder)
