"""What a training tells Prometheus: its own endpoint, in the process that keeps the run's record.

Served where ``metrics_port.PORT`` names a port, which jobs of a cluster set; a scrape reads numbers that are
there anyway, in a thread of its own. Every metric has the labels ``run`` and ``job_id``: Slurm's number of
the job, which GPUs' metrics carry as ``hpc_job``, or the name of the job in Kubernetes.

Rates are left to Prometheus: a training that stands still has none, whereas a gauge would keep its last one.
Counters begin at 0 with each start; what the run has done over all of them are gauges, ``..._run_...``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from workloads.training.loader import StepPacks

from .metrics_port import JOB_ID, PORT

LABELS = ("run", "job_id")
STEP_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: from 8M on one GPU to 15B with 2 M tokens on few."""
_GAUGES = {
    # Of the run's log: the name there, here, and what it is.
    "loss": ("loss", "Mean over the targets of the last logged step; in nats where it is a cross-entropy"),
    "grad_norm": ("gradient_norm", "Global norm of the gradient in the last logged step, before clipping"),
    "learning_rate": ("learning_rate", "Of the last logged step"),
    "epoch": ("epoch", "Passes over the training split that are complete"),
    "residues": ("run_residues", "Residues trained on over all starts of the run"),
    "seconds": ("run_seconds", "Training time over all starts of the run"),
    "peak_memory_bytes": (
        "peak_memory_bytes",
        "Most memory in use so far: allocated on the first GPU, resident in the first process without GPUs",
    ),
}


class TrainingMetrics:
    """Numbers of one start of a run.

    Args:
        run: the run's name.
        max_steps: of the whole run.
        processes: how many train.
        peak_flops: bf16 FLOP/s of all devices together; None where that is not known.
        num_flops: model FLOPs of residues and attended pairs, linear in both.
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
        try:
            self._client: Any = importlib.import_module("prometheus_client")
        except ModuleNotFoundError:
            self._client = _Nothing()
        self.registry = self._client.CollectorRegistry()
        self._labels = {"run": run, "job_id": os.environ.get(JOB_ID, "")}
        self._flops_per_residue, self._flops_per_pair = num_flops(1, 0), num_flops(0, 1)
        self._gauges = {name: self._gauge(*about) for name, about in _GAUGES.items()}
        self._step = self._gauge("step", "Optimizer steps that the run has made")
        self._validation_loss = self._gauge(
            "validation_loss", "Of the last evaluation on the validation split"
        )
        self._checkpoint_step = self._gauge("checkpoint_step", "Step of the newest whole checkpoint")
        self._checkpoint_write = self._gauge(
            "checkpoint_write_seconds",
            "From the last save to its checkpoint being whole, beside the training",
        )
        self._residues = self._counter("residues", "Residues trained on; no padding, no special tokens")
        self._tokens = self._counter("tokens", "Slots of the packs trained on, padding included")
        self._flops = self._counter("model_flops", "Model FLOPs of forward and backward pass over residues")
        self._lost_steps = self._counter("lost_steps", "Steps made again that a former start had not saved")
        self._step_seconds = self._client.Histogram(
            "esm2_training_step_seconds",
            "Time of an optimizer step, without waiting for data",
            LABELS,
            buckets=STEP_BUCKETS,
            registry=self.registry,
        ).labels(**self._labels)
        self._data_wait = self._summary("data_wait_seconds", "Waiting for the packs of a step")
        self._stall = self._summary("checkpoint_stall_seconds", "Standing still for a checkpoint")
        self._evaluation = self._summary("evaluation_seconds", "Standing still for an evaluation")
        self._gauge("max_steps", "Optimizer steps of the whole run").labels(**self._labels).set(max_steps)
        self._gauge("processes", "Processes that train").labels(**self._labels).set(processes)
        if peak_flops is not None:
            peak = self._gauge("peak_flops_per_second", "bf16 peak of all GPUs, by their data sheet")
            peak.labels(**self._labels).set(peak_flops)

    @contextmanager
    def served(self, port: str | None) -> Iterator[None]:
        """Answer scrapes on a port of this machine meanwhile; None answers nobody.

        A port that is taken is a warning: the run does without.
        """
        server = thread = None
        if port is not None:
            try:
                if isinstance(self._client, _Nothing):
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

    def made_step(self, step: int, packs: StepPacks) -> None:
        self._step.labels(**self._labels).set(step)
        self._residues.inc(packs.num_residues)
        self._tokens.inc(packs.num_tokens)
        self._flops.inc(
            self._flops_per_residue * packs.num_residues + self._flops_per_pair * packs.num_attended_pairs
        )

    def logged(self, values: Mapping[str, float | None]) -> None:
        """What the run's log gets for a step, by its names there."""
        for name, gauge in self._gauges.items():
            if (value := values.get(name)) is not None:
                gauge.labels(**self._labels).set(value)

    def started_at(self, step: int, lost_steps: int) -> None:
        self._step.labels(**self._labels).set(step)
        self._lost_steps.inc(lost_steps)

    def evaluated(self, values: Mapping[str, float]) -> None:
        self._validation_loss.labels(**self._labels).set(values["eval_loss"])

    def saved(self, step: int, seconds: float) -> None:
        """A checkpoint is whole, ``seconds`` after its save began."""
        self._checkpoint_step.labels(**self._labels).set(step)
        self._checkpoint_write.labels(**self._labels).set(seconds)

    def stepping(self) -> AbstractContextManager[object]:
        return self._step_seconds.time()

    def waiting_for_data(self) -> AbstractContextManager[object]:
        return self._data_wait.time()

    def stalling(self) -> AbstractContextManager[object]:
        return self._stall.time()

    def evaluating(self) -> AbstractContextManager[object]:
        return self._evaluation.time()

    def _gauge(self, name: str, text: str) -> Any:
        """Return a gauge that has no value, and so is not published, until it is set."""
        return self._client.Gauge(f"esm2_training_{name}", text, LABELS, registry=self.registry)

    def _counter(self, name: str, text: str) -> Any:
        metric = self._client.Counter(f"esm2_training_{name}", text, LABELS, registry=self.registry)
        return metric.labels(**self._labels)

    def _summary(self, name: str, text: str) -> Any:
        metric = self._client.Summary(f"esm2_training_{name}", text, LABELS, registry=self.registry)
        return metric.labels(**self._labels)


class _Nothing:
    """Stand-in for prometheus_client and its metrics where it is missing: takes values and keeps none."""

    def __getattr__(self, name: str) -> _Nothing:
        return self

    def __call__(self, *values: object, **names: object) -> _Nothing:
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...
