"""Metrics of a training for Prometheus, on an endpoint of its own in the process that keeps the run's record.

Served where ``metrics_port.PORT`` names a port, which jobs of a cluster set; a scrape reads numbers that are
there anyway, in a thread of its own. Every metric has the labels ``run`` and ``job_id``: Slurm's number of
the job, which GPUs' metrics carry as ``hpc_job``, or the name of the job in Kubernetes.

Rates are left to Prometheus: a training that stands still has none, whereas a gauge would keep its last one.
Counters begin at 0 with each start; what the run has done over all of them are gauges, ``..._run_...``.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from seqlm.training.loader import StepPacks

from .metrics_port import JOB_ID, PORT

STEP_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: from 8M on one GPU to 15B with 2 M tokens on few."""
_METRICS = {
    "Gauge": {
        "loss": "Mean over the targets of the last logged step; in nats where it is a cross-entropy",
        "gradient_norm": "Global norm of the gradient in the last logged step, before clipping",
        "learning_rate": "Of the last logged step",
        "epoch": "Passes over the training split that are complete",
        "run_residues": "Residues trained on over all starts of the run",
        "run_seconds": "Training time over all starts of the run",
        "peak_memory_bytes": "Most memory in use so far: allocated on the first GPU, resident in the first "
        "process without GPUs",
        "step": "Optimizer steps that the run has made",
        "validation_loss": "Of the last evaluation on the validation split",
        "checkpoint_step": "Step of the newest whole checkpoint",
        "checkpoint_write_seconds": "From the last save to its checkpoint being whole, beside the training",
        "max_steps": "Optimizer steps of the whole run",
        "processes": "Processes that train",
        "peak_flops_per_second": "bf16 peak of all GPUs, by their data sheet",
    },
    "Counter": {
        "residues": "Residues trained on; no padding, no special tokens",
        "tokens": "Slots of the packs trained on, padding included",
        "model_flops": "Model FLOPs of forward and backward pass over residues",
        "lost_steps": "Steps made again that a former start had not saved",
    },
    "Histogram": {"step_seconds": "Time of an optimizer step, without waiting for data"},
    "Summary": {
        "data_wait_seconds": "Waiting for the packs of a step",
        "checkpoint_stall_seconds": "Standing still for a checkpoint",
        "evaluation_seconds": "Standing still for an evaluation",
    },
}
"""Texts of the metrics by prometheus_client's classes and by their names after ``esm2_training_``."""
_LOGGED = {
    **{name: name for name in ("loss", "learning_rate", "epoch", "peak_memory_bytes")},
    "grad_norm": "gradient_norm",
    "residues": "run_residues",
    "seconds": "run_seconds",
}
"""Gauges by the names of their values in the run's log."""


class TrainingMetrics:
    """Numbers of one start of a run; nothing is kept where prometheus_client is missing.

    Args:
        run: the run's name.
        num_flops: model FLOPs of residues and attended pairs, linear in both.
    """

    def __init__(self, run: str, num_flops: Callable[[int, int], float]) -> None:
        self._metrics: dict[str, Any] = {}
        self._labels = {"run": run, "job_id": os.environ.get(JOB_ID, "")}
        self._flops_per_residue, self._flops_per_pair = num_flops(1, 0), num_flops(0, 1)
        try:
            self._client: Any = importlib.import_module("prometheus_client")
        except ModuleNotFoundError:
            self._client = None
            return
        self.registry = self._client.CollectorRegistry()
        for kind, texts in _METRICS.items():
            options: dict[str, Any] = {"buckets": STEP_BUCKETS} if kind == "Histogram" else {}
            for name, text in texts.items():
                metric = getattr(self._client, kind)(
                    f"esm2_training_{name}", text, tuple(self._labels), registry=self.registry, **options
                )
                # A gauge is not published before it has labels, which it gets with its first value.
                self._metrics[name] = metric if kind == "Gauge" else metric.labels(**self._labels)

    @contextmanager
    def served(self, port: str | None) -> Iterator[None]:
        """Answer scrapes on a port of this machine meanwhile; None opens no port.

        A port that is taken is a warning: the run does without.
        """
        server = thread = None
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

    def made_step(self, step: int, packs: StepPacks) -> None:
        flops = self._flops_per_residue * packs.num_residues + self._flops_per_pair * packs.num_attended_pairs
        self.set(step=step)
        self.add(residues=packs.num_residues, tokens=packs.num_tokens, model_flops=flops)

    def logged(self, values: Mapping[str, float | None]) -> None:
        """Publish the values of a step, given by their names in the run's log."""
        self.set(**{name: values.get(in_log) for in_log, name in _LOGGED.items()})

    def timing(
        self, what: Literal["step", "data_wait", "checkpoint_stall", "evaluation"]
    ) -> AbstractContextManager[object]:
        """Measure the seconds of a block."""
        return self._metrics[f"{what}_seconds"].time() if self._metrics else nullcontext()

    def set(self, **values: float | None) -> None:
        """Set gauges; None leaves one as it is."""
        for name, value in values.items():
            if self._metrics and value is not None:
                self._metrics[name].labels(**self._labels).set(value)

    def add(self, **values: float) -> None:
        """Add to counters."""
        for name, value in values.items():
            if self._metrics:
                self._metrics[name].inc(value)
