"""Records of a run: ``metrics.jsonl``, ``all_results.json``, a progress bar, MLflow, W&B.

All other records can be derived from ``metrics.jsonl``. It has one JSON object per line. ``kind`` is
``train``, ``eval`` or ``event``, and ``step`` counts optimizer steps from 1.
"""

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TextIO

import yaml
from tqdm import tqdm

from seqlm.training.config import TrackingConfig
from seqlm.training.report.page import si
from seqlm.training.whole_file import naming, write_whole

from .mirror import Mirror, MlflowMirror, RunStatus, WandbMirror
from .record_file import drop_after, lines_of, values_of

METRICS_FILE = "metrics.jsonl"
RESULTS_FILE = "all_results.json"
CONFIG_FILE = "config.yaml"
REPORT_FILE = "report.html"
STOPPED = "stopped by "
"""Beginning of the event that ends the record of a stopped start; a signal follows."""
_WRITTEN = (
    "model",
    "adapter",
    "checkpoints",
    CONFIG_FILE,
    METRICS_FILE,
    RESULTS_FILE,
    REPORT_FILE,
    "precision.json",
    "device-speeds.json",
    "predictions-*.csv",
    "predictions-*.npz",
    "answers.json",
)
"""Patterns of the files and folders in a run's folder, in the order in which they are printed."""
PLAIN_LINE_EVERY_SECONDS = 30.0
"""Interval of progress lines if stderr is a file. A terminal gets a bar."""


class RunLog:
    """Record of one run.

    An existing record is continued. Before the first ``train``, call ``truncate_after`` with the step that
    the run resumes from. It also drops a last line that a kill cut short.

    Args:
        run_dir: folder of the run; created if it is missing.
        config: configuration of the run, as plain data.
        tracking: section of the run file.
        max_steps: optimizer steps of the whole run.
        enabled: whether this process keeps the record; without it, no method has an effect.
        tokens: word for the tokens in progress lines.
        defers_errors: whether a line that cannot be written sets ``failure``, for all processes to end
            together, and raises nothing.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        config: Mapping[str, Any],
        tracking: TrackingConfig,
        max_steps: int,
        enabled: bool,
        tokens: str = "residues",
        defers_errors: bool = False,
    ) -> None:
        self._enabled = enabled
        self._defers_errors = defers_errors
        self._max_steps = max_steps
        self.failure: OSError | None = None
        """First error of a write, if errors are deferred. Later lines are not written."""
        if not enabled:
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        write_whole(run_dir / CONFIG_FILE, yaml.safe_dump(dict(config), sort_keys=False))
        self._path = run_dir / METRICS_FILE
        self._stream: TextIO | None = self._path.open("a", encoding="utf-8")
        self._progress = _Progress(max_steps, tokens)
        self._mirrors: list[Mirror] = []
        if tracking.mlflow:
            self._mirrors.append(
                MlflowMirror(
                    run_dir, uri=tracking.mlflow_uri, experiment=tracking.experiment, params=config
                )
            )
        if tracking.wandb:
            self._mirrors.append(WandbMirror(run_dir, project=tracking.wandb, config=config))

    def train(self, step: int, **values: float | None) -> None:
        """Record the values of a training step; ``report/run_report.py`` reads them by their names."""
        if not self._enabled:
            return
        self._write({"kind": "train", "step": step, **values})
        self._mirror(step, "train", values)
        self._progress.train(step, values)

    def evaluation(
        self, step: int, split: Literal["validation", "test", "general"], **values: float | None
    ) -> None:
        """Record the scores of a split."""
        if not self._enabled:
            return
        self._write({"kind": "eval", "split": split, "step": step, **values})
        self._mirror(step, split, values)
        shown = [f"{name} {value:.4g}" for name, value in values.items() if value is not None]
        self._progress.say(f"step {step}: {split} {', '.join(shown)}")

    def event(self, step: int, text: str, **values: int) -> None:
        """Record an event, such as a checkpoint."""
        if not self._enabled:
            return
        self._write({"kind": "event", "step": step, "event": text, **values})
        shown = [f", {name.replace('_', ' ')} {value}" for name, value in values.items()]
        self._progress.say(f"step {step}: {text}{''.join(shown)}")

    def stopped(self, step: int, signal_name: str) -> None:
        """Record the end of a start after a signal."""
        self.event(step, f"{STOPPED}{signal_name}")

    def say(self, text: str) -> None:
        """Print a line that is not recorded."""
        if self._enabled:
            self._progress.say(text)

    def truncate_after(self, step: int) -> int:
        """Drop the lines of a crashed start beyond ``step``, so that the record has each step once.

        If ``step`` is the last one, the run ended while it scored its result, and scores it again. The
        evaluations after its checkpoint are dropped, too.

        MLflow and W&B cannot drop values, and keep both of a repeated step.

        Returns:
            Number of recorded steps that have to be repeated.
        """
        if not self._enabled:
            return 0
        assert self._stream is not None, "truncate_after comes before close"
        self._stream.close()
        lost = drop_after(self._path, step, is_last=step == self._max_steps)
        self._stream = self._path.open("a", encoding="utf-8")
        self._progress.start_at(step)
        return lost

    def close(self, status: RunStatus = "FINISHED") -> None:
        """End the record, and mark its copies with the status. A second call has no effect."""
        if not self._enabled or self._stream is None:
            return
        try:
            self._stream.close()
        except OSError as error:  # the line of the failure is still in the buffer
            self.failure = self.failure or error
        self._stream = None
        self._progress.close()
        for mirror in self._mirrors:
            mirror.end(status)
        for mirror in self._mirrors:
            mirror.wait()

    def _mirror(self, step: int, kind: str, values: Mapping[str, float | None]) -> None:
        numbers = {
            f"{kind}/{name}": float(value) for name, value in values.items() if value is not None
        }
        for mirror in self._mirrors:
            mirror.metrics(step, numbers)

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._stream is not None, "the record is closed"
        if self.failure is not None:
            return
        try:
            with naming(self._path):
                self._stream.write(_json_line(line))
                # Otherwise a kill would lose lines.
                self._stream.flush()
        except OSError as error:
            if not self._defers_errors:
                raise
            self.failure = error


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every complete line of ``metrics.jsonl``, without a last line that a kill cut short.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if another line is damaged.
    """
    for line in lines_of(path):
        values = values_of(path, line)
        if values is not None:
            yield values


def write_results(run_dir: Path, results: Mapping[str, Any], file: str = RESULTS_FILE) -> None:
    """Write a JSON file into a run's folder, whole or not at all; NaN and infinities become null."""
    write_whole(run_dir / file, json.dumps(_finite(results), indent=2, allow_nan=False) + "\n")


def files_line(run_dir: Path) -> str:
    """Return the line of a finished training that names the files and folders of the run."""
    names = []
    for pattern in _WRITTEN:
        for path in sorted(run_dir.glob(pattern)):
            names.append(f"{path.name}/" if path.is_dir() else path.name)
    return f"files   {run_dir}: {', '.join(names)}"


class _Progress:
    """Progress bar on a terminal, else a line every half minute."""

    def __init__(self, max_steps: int, tokens: str) -> None:
        self._max_steps = max_steps
        self._tokens = tokens
        self._is_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=max_steps,
            desc="train",
            unit="step",
            file=sys.stderr,
            dynamic_ncols=True,
            disable=not self._is_terminal,
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
        )
        self._last_line_seconds = -math.inf
        self.start_at(0)

    def start_at(self, step: int) -> None:
        self._first_step = step
        self._start_seconds = time.monotonic()
        if self._is_terminal:
            self._bar.initial = step
            self._bar.reset(self._max_steps)
            self._bar.n = step
            self._bar.refresh()

    def train(self, step: int, values: Mapping[str, float | None]) -> None:
        loss = values.get("loss")
        speed = values.get("residues_per_second")
        shown = []
        if loss is not None:
            shown.append(f"loss {loss:.3f}")
        if speed is not None:
            shown.append(f"{si(speed)} {self._tokens}/s")
        if self._is_terminal:
            self._bar.set_postfix_str(", ".join(shown), refresh=False)
            self._bar.update(step - self._bar.n)
            return
        now = time.monotonic()
        is_due = now - self._last_line_seconds >= PLAIN_LINE_EVERY_SECONDS
        if not is_due and step < self._max_steps:
            return
        self._last_line_seconds = now
        done = step - self._first_step
        if done > 0:
            seconds_left = (now - self._start_seconds) / done * (self._max_steps - step)
            shown.append(f"ETA {timedelta(seconds=round(seconds_left))}")
        self.say(f"step {step}/{self._max_steps}: {', '.join(shown)}")

    def say(self, text: str) -> None:
        """Print a line. A full disk or a closed pipe behind stderr does not end the run."""
        with contextlib.suppress(OSError):
            tqdm.write(text, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()


def _json_line(line: Mapping[str, Any]) -> str:
    return json.dumps(_finite(line), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by None. JSON lacks them, and other readers reject Python's words."""
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
