"""Metrics of a training for Prometheus, served by the process that keeps the run's record.

The endpoint exists if ``metrics_port.PORT`` names a port, which jobs of a cluster set. A thread of its own
answers scrapes, with numbers that the training has anyway. Every metric has the labels ``run`` and
``job_id``. The latter is the number of the job in Slurm, which metrics of GPUs carry as ``hpc_job``, or the
name of the job in Kubernetes.

Prometheus computes the rates: a training that stands still has none, whereas a gauge would keep its last
rate. Counters begin at 0 with each start. Totals over all starts of a run are gauges, ``..._run_...``.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from seqlm.training.step.loader import StepPacks

from .metrics_port import JOB_ID, PORT

STEP_BUCKETS = (
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    3.0,
    5.0,
    7.5,
    10.0,
    15.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
)
"""Bounds of a step's time in seconds, from 8M on one GPU to 15B with 2 M tokens on few."""
_PREFIX = "esm2_training_"
"""Beginning of every metric's name. Dashboards and alerts depend on it."""
_GAUGES = {
    "loss": "Mean loss over the targets of the last logged step, in nats if it is a cross-entropy",
    "gradient_norm": "Global norm of the gradient in the last logged step, before clipping",
    "learning_rate": "Learning rate of the last logged step",
    "epoch": "Complete passes over the training split",
    "run_residues": "Residues (tokens of records) trained on over all starts of the run",
    "run_seconds": "Training time over all starts of the run",
    "peak_memory_bytes": "Most memory in use so far: allocated on the first GPU, or resident in the first "
    "process without GPUs",
    "step": "Optimizer steps that the run has made",
    "validation_loss": "Loss of the last evaluation on the validation split",
    "checkpoint_step": "Step of the newest complete checkpoint",
    "checkpoint_write_seconds": "Time from the last save until its checkpoint was complete, during training",
    "max_steps": "Optimizer steps of the whole run",
    "processes": "Number of processes that train",
    "pass_seconds": "Median over the processes of the time of a pack without waiting for others",
    "slowest_pass_ratio": "Longest time of a pack of any process over the median",
    "peak_flops_per_second": "Peak bf16 rate of all GPUs together, from their data sheet",
}
_COUNTERS = {
    "residues": "Residues (tokens of records) trained on, without padding and special tokens",
    "tokens": "Slots of the packs trained on, padding included",
    "model_flops": "Model FLOPs of the forward and backward pass over residues",
    "lost_steps": "Repeated steps, which a former start had made and not saved",
}
_HISTOGRAMS = {"step_seconds": "Time of an optimizer step, without the wait for data"}
_SUMMARIES = {
    "data_wait_seconds": "Time that steps waited for their packs",
    "checkpoint_stall_seconds": "Time that the training stood still for checkpoints",
    "memory_state_stall_seconds": "Time that the training stood still for states in the nodes' memory",
    "evaluation_seconds": "Time that the training stood still for evaluations",
}
_GAUGES_BY_LOG_NAME = {
    "loss": "loss",
    "grad_norm": "gradient_norm",
    "learning_rate": "learning_rate",
    "epoch": "epoch",
    "residues": "run_residues",
    "seconds": "run_seconds",
    "peak_memory_bytes": "peak_memory_bytes",
    "pass_seconds": "pass_seconds",
    "slowest_pass_ratio": "slowest_pass_ratio",
}
"""Gauges of the values that the run's log has for a training step."""
_SLOW = "slow_process_ratio"
_SLOW_TEXT = "Time of a pack over the median, of a process that has been slow for minutes"
_PLACE = ("process", "node", "gpu")
"""Further labels of a slow process."""
TimedPart = Literal["step", "data_wait", "checkpoint_stall", "memory_state_stall", "evaluation"]
"""Parts of a training with a metric of their duration."""


class TrainingMetrics:
    """Metrics of one start of a run. Without the package prometheus_client, no method has an effect.

    Args:
        run: name of the run.
        max_steps: optimizer steps of the whole run.
        processes: number of processes that train.
        peak_flops: bf16 FLOP/s of all devices together; None if it is not known.
        num_flops: function of the numbers of record tokens and of attended pairs that returns their model
            FLOPs, linear in both.
    """

    def __init__(
        self,
        *,
        run: str,
        max_steps: int,
        processes: int,
        peak_flops: float | None,
        num_flops: Callable[[int, int], float],
    ) -> None:
        self._labels = {"run": run, "job_id": os.environ.get(JOB_ID, "")}
        self._flops_per_token = num_flops(1, 0)
        self._flops_per_pair = num_flops(0, 1)
        self._metrics: dict[str, Any] = {}
        """Metrics by name; gauges without their labels, because a gauge with labels is published at once."""
        try:
            self._client: Any = importlib.import_module("prometheus_client")
        except ModuleNotFoundError:
            self._client = None
            return
        self.registry = self._client.CollectorRegistry()
        for name, text in _GAUGES.items():
            self._metrics[name] = self._create(self._client.Gauge, name, text)
        for name, text in _COUNTERS.items():
            self._metrics[name] = self._create(self._client.Counter, name, text).labels(
                **self._labels
            )
        for name, text in _HISTOGRAMS.items():
            histogram = self._create(self._client.Histogram, name, text, buckets=STEP_BUCKETS)
            self._metrics[name] = histogram.labels(**self._labels)
        for name, text in _SUMMARIES.items():
            self._metrics[name] = self._create(self._client.Summary, name, text).labels(
                **self._labels
            )
        self._slow = self._client.Gauge(
            f"{_PREFIX}{_SLOW}", _SLOW_TEXT, (*self._labels, *_PLACE), registry=self.registry
        )
        self._set("max_steps", max_steps)
        self._set("processes", processes)
        self._set("peak_flops_per_second", peak_flops)

    def _create(self, kind: Any, name: str, text: str, **options: object) -> Any:
        return kind(
            f"{_PREFIX}{name}", text, tuple(self._labels), registry=self.registry, **options
        )

    @contextmanager
    def served(self, port: str | None) -> Iterator[None]:
        """Answer scrapes during the block.

        A port that is taken costs a warning, and the run continues without published metrics.

        Args:
            port: port of this machine, as the environment gives it; None opens no port.
        """
        server = None
        thread = None
        if port is not None:
            try:
                if self._client is None:
                    raise ValueError("the package prometheus-client is missing")
                server, thread = self._client.start_http_server(int(port), registry=self.registry)
            except (OSError, OverflowError, ValueError) as error:
                print(
                    f"warning: this training's metrics are not published: {PORT} is {port!r} ({error}); "
                    "name a free port of this machine",
                    file=sys.stderr,
                )
        try:
            yield
        finally:
            if server and thread:
                server.shutdown()
                thread.join()
                server.server_close()

    def started_at(self, step: int, lost_steps: int) -> None:
        """Publish the position of the run at this start.

        Args:
            step: number of steps that the run has made.
            lost_steps: number of steps that a former start had made and not saved.
        """
        self._set("step", step)
        self._add("lost_steps", lost_steps)

    def made_step(self, step: int, packs: StepPacks) -> None:
        """Count a step that has been launched."""
        flops = (
            self._flops_per_token * packs.num_record_tokens
            + self._flops_per_pair * packs.num_attended_pairs
        )
        self._set("step", step)
        self._add("residues", packs.num_record_tokens)
        self._add("tokens", packs.num_tokens)
        self._add("model_flops", flops)

    def logged(self, values: Mapping[str, float | None]) -> None:
        """Publish the values of a training step, given by their names in the run's log."""
        for log_name, gauge in _GAUGES_BY_LOG_NAME.items():
            self._set(gauge, values.get(log_name))

    def evaluated(self, loss: float) -> None:
        """Publish the loss on the validation split."""
        self._set("validation_loss", loss)

    def saved(self, step: int, seconds: float) -> None:
        """Publish that the checkpoint of ``step`` is complete, ``seconds`` after its save began."""
        self._set("checkpoint_step", step)
        self._set("checkpoint_write_seconds", seconds)

    def slow_process(self, process: int, node: str, gpu: str, ratio: float | None) -> None:
        """Publish that a process is slow.

        Args:
            process: number of the process.
            node: name of its node.
            gpu: number of its GPU on the node; empty without a GPU.
            ratio: time of its packs over the median; None if it is slow no longer.
        """
        if not self._metrics:
            return
        values = (*self._labels.values(), str(process), node, gpu)
        if ratio is None:
            self._slow.remove(*values)
        else:
            self._slow.labels(*values).set(ratio)

    def timing(self, part: TimedPart) -> AbstractContextManager[object]:
        """Measure the duration of a block."""
        return self._metrics[f"{part}_seconds"].time() if self._metrics else nullcontext()

    def _set(self, gauge: str, value: float | None) -> None:
        """Set a gauge; None leaves it as it is."""
        if self._metrics and value is not None:
            self._metrics[gauge].labels(**self._labels).set(value)

    def _add(self, counter: str, amount: float) -> None:
        if self._metrics:
            self._metrics[counter].inc(amount)
