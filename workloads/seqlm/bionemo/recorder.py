"""Heartbeats, ``metrics.jsonl`` and MLflow of a training by BioNeMo, as of the project's own trainer.

Lightning calls the factories that installed packages name as entry points of ``CALLBACKS_GROUP``.
``registered`` temporarily installs such a package for this module, so BioNeMo's code stays unchanged.
"""

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from seqlm.runs.run_file import RunFile
from seqlm.training.heartbeat import beat
from seqlm.training.tracking.mirror import RunStatus
from seqlm.training.tracking.run_log import RunLog

from .command import step_proteins

CALLBACKS_GROUP = "lightning.pytorch.callbacks_factory"
"""Group of entry points (Lightning's ``callback_connector.py``)."""
PACKAGE = "esm2_run_record"
"""Name of the temporary package."""
TRAIN_LOSS = "reduced_train_loss"
"""Name under which NeMo's strategy logs the loss."""
LEARNING_RATE = "lr"
"""Name under which NeMo's optimizer module logs the learning rate."""
EVALUATED = {
    "val_loss": "eval_loss",
    "val_ppl": "perplexity",
    "val_acc": "eval_accuracy",
    "val_mse": "mse",
}
"""Names of scores in BioNeMo, and in the project's metrics."""
_current: Any = None
"""Recorder of the training that runs."""


class _Window(NamedTuple):
    """Start of the steps whose rate is recorded next."""

    started: float
    """Time of the start, of ``time.monotonic``."""
    step: int
    """Steps that were completed before."""


class Recorder:
    """Hooks of a Lightning callback. ``callbacks`` adds the base class.

    Args:
        config: run file.
        is_first: whether this process writes the record. The others only write heartbeats.
    """

    def __init__(self, config: RunFile, *, is_first: bool) -> None:
        self._config = config
        self._is_first = is_first
        self._log: RunLog | None = None
        self._window = _Window(time.monotonic(), 0)
        self._saved = -1
        """Step of the last checkpoint in the record."""
        self.step = 0
        """Number of optimizer steps that the run has completed."""

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
        self._window = _Window(time.monotonic(), step)

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        beat("training")
        self._end_step(trainer)

    def _end_step(self, trainer: Any) -> None:
        """Record the metrics of a step, unless they are recorded already."""
        if self.step == int(trainer.global_step):
            return
        self.step = int(trainer.global_step)
        if self._log is None or (self.step % self._config.train.log_every_steps and self.step != 1):
            return
        metrics = trainer.callback_metrics
        now = time.monotonic()
        proteins = (self.step - self._window.step) * step_proteins(self._config)
        found = {
            name: float(metrics[name]) for name in (TRAIN_LOSS, LEARNING_RATE) if name in metrics
        }
        self._log.train(
            self.step,
            loss=found.get(TRAIN_LOSS),
            learning_rate=found.get(LEARNING_RATE),
            proteins_per_second=proteins / max(now - self._window.started, 1e-9),
        )
        self._window = _Window(now, self.step)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        beat("evaluating", slow=True)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if self._log is None or trainer.sanity_checking:
            return
        metrics = trainer.callback_metrics
        found = {ours: float(metrics[name]) for name, ours in EVALUATED.items() if name in metrics}
        self._log.evaluation(self.step, "validation", **found)
        # A checkpoint follows, which may take long.
        beat("saving", slow=True)
        self._window = _Window(time.monotonic(), self.step)

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        beat("saving", slow=True)
        # After SIGTERM, NeMo saves and exits before it reports the end of the step.
        self._end_step(trainer)
        # Lightning calls this twice, for the last checkpoint and for the best one.
        if self._log is not None and self._saved != self.step:
            self._log.event(self.step, "checkpoint begun")
            self._saved = self.step

    def close(self, status: RunStatus) -> None:
        """Close the record at the end of the training.

        Args:
            status: status of the run for MLflow.
        """
        beat("ending", slow=True)
        if self._log is not None:
            self._log.close(status)


def callbacks() -> list[Any]:
    """Return the callback of the training within ``registered``. Lightning calls this factory."""
    if _current is None:
        return []
    base = importlib.import_module("lightning.pytorch.callbacks").Callback
    names = [name for name in dir(_current) if name.startswith("on_")]
    hooks = {name: staticmethod(getattr(_current, name)) for name in names}
    return [type("RunRecord", (base,), hooks)()]


@contextmanager
def registered(recorder: Any) -> Iterator[None]:
    """Make Lightning trainers that are created within the context call the recorder's hooks."""
    global _current
    with TemporaryDirectory(prefix="esm2-record-") as folder:
        about = Path(folder) / f"{PACKAGE}-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(
            f"[{CALLBACKS_GROUP}]\n{PACKAGE} = {__name__}:callbacks\n"
        )
        sys.path.append(folder)
        _current = recorder
        try:
            yield
        finally:
            _current = None
            sys.path.remove(folder)
