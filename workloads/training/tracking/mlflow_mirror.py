"""Copy a run's metrics to MLflow from a thread of its own, so that a slow server never slows a step.

The store is the configured URI, else ``MLFLOW_TRACKING_URI``, else the folder ``mlruns``. SageMaker's
managed MLflow is given by its ARN; the plugin sagemaker-mlflow reaches it, signing with boto3's credentials.
With mlflow-skinny a local store is a plain folder: MLflow's default, SQLite, needs sqlalchemy and the full
package. MLflow 3 asks for ``MLFLOW_ALLOW_FILE_STORE`` before it writes one, which is set here.
``mlflow ui --backend-store-uri mlruns`` of a full MLflow shows it.

A server that is down costs one warning. Metrics wait in memory and are sent when it is back;
``metrics.jsonl`` has them in any case.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from workloads.training.config import flat
from workloads.training.whole_file import write_whole

# MLflow reads these when it is imported. What the user has set stays.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
# The address of the run, printed to stdout at its end, would stand amid the output of the program.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
# MLflow would try for four minutes before it says a word; the thread below tries again itself.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

SEND_EVERY_SECONDS = 5.0
RETRY_AFTER_SECONDS = 60.0
CLOSE_TIMEOUT_SECONDS = 10.0
"""Time that the end of a run waits for a slow server; stopped jobs have 30 seconds (Slurm, Kubernetes)."""
MAX_WAITING_METRICS = 100_000
"""About 20 MB; of a longer outage the oldest are given up."""
# Limits of MLflow's REST interface, which the file store shares.
MAX_METRICS_PER_BATCH = 1000
MAX_PARAMS_PER_BATCH = 100
MAX_PARAM_CHARS = 6000
MAX_MESSAGE_CHARS = 200
MANAGED = re.compile(r"arn:aws(?:-us-gov)?:sagemaker:[a-z0-9-]+:\d{12}:mlflow-(?:app|tracking-server)/[\w-]+")
"""The ARNs that the plugin knows an address for."""
RUN_ID_FILE = "mlflow_run_id"


class MlflowMirror:
    """One MLflow run: the one whose id is in the run folder, or else a new one."""

    def __init__(self, run_dir: Path, *, uri: str | None, experiment: str, params: Mapping[str, Any]) -> None:
        self._run_dir = run_dir
        # Settled now: the thread must not depend on a later change of the working folder.
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or (Path.cwd() / "mlruns").as_uri()
        self._experiment = experiment
        self._params = params_of(params)
        self._waiting: list[tuple[str, float, int, int]] = []  # name, value, timestamp in ms, step
        self._status: RunStatus | None = None
        self._warned = False
        self._condition = threading.Condition()
        self._client: Any = None
        self._run_id = ""
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        now_ms = time.time_ns() // 1_000_000
        with self._condition:
            self._waiting += [(name, value, now_ms, step) for name, value in values.items()]
            del self._waiting[:-MAX_WAITING_METRICS]

    def close(self, status: RunStatus) -> None:
        with self._condition:
            self._status = status
            self._condition.notify()
        self._thread.join(CLOSE_TIMEOUT_SECONDS)
        if self._thread.is_alive() or self._waiting:
            self._warn_once("has not taken every metric of this run")

    def _work(self) -> None:
        if self._uri.startswith("arn:") and not MANAGED.fullmatch(self._uri):
            self._warn_once("is no app or tracking server of SageMaker; give the ARN of one")
            return
        try:
            import mlflow  # here, since it takes seconds
        except ImportError as error:
            self._warn_once(f"is off: a package is missing ({error}); install requirements.txt to use it")
            return
        if self._uri.startswith("arn:"):
            # The plugin asks for the process's, not for the client's.
            mlflow.set_tracking_uri(self._uri)
        else:
            # The plugin takes every other store for an ARN, and MLflow complains of that with each request.
            logging.getLogger("mlflow.tracking.request_header.registry").setLevel(logging.ERROR)
        wait_seconds = 0.0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._status is not None, wait_seconds)
                status = self._status
            try:
                self._send()
                if status is not None:
                    self._client.set_terminated(self._run_id, status)
                if self._warned and not self._waiting:
                    self._say("is back and up to date")
                    self._warned = False
                wait_seconds = SEND_EVERY_SECONDS
            except Exception as error:  # of MLflow, its plugin or the network: none may end a run
                text = _without_login(str(error).partition("\n")[0])[:MAX_MESSAGE_CHARS]
                self._warn_once(f"does not take this run ({type(error).__name__}: {text})")
                wait_seconds = RETRY_AFTER_SECONDS
            if status is not None:
                return

    def _send(self) -> None:
        from mlflow.entities import Metric

        if not self._run_id:
            self._run_id = self._open_run()
        while self._waiting:
            batch = self._waiting[:MAX_METRICS_PER_BATCH]
            self._client.log_batch(self._run_id, metrics=[Metric(*entry) for entry in batch])
            with self._condition:
                # Identity, since an overflow may have dropped the head meanwhile.
                sent = {id(entry) for entry in batch}
                self._waiting = [entry for entry in self._waiting if id(entry) not in sent]

    def _open_run(self) -> str:
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        self._client = MlflowClient(tracking_uri=self._uri)
        id_file = self._run_dir / RUN_ID_FILE
        if id_file.exists():
            run_id = id_file.read_text().strip()
            try:
                if self._client.get_run(run_id).info.lifecycle_stage == "active":
                    # The parameters stay as first logged: MLflow does not let them change.
                    self._client.update_run(run_id, status="RUNNING")
                    return run_id
            except MlflowException as error:
                # Another store than last time, or the run was deleted there: a new one.
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
        experiment = self._client.get_experiment_by_name(self._experiment)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        )
        run_id = str(self._client.create_run(experiment_id, run_name=self._run_dir.name).info.run_id)
        write_whole(id_file, run_id + "\n")
        params = [Param(name, value) for name, value in self._params.items()]
        for start in range(0, len(params), MAX_PARAMS_PER_BATCH):
            self._client.log_batch(run_id, params=params[start : start + MAX_PARAMS_PER_BATCH])
        return run_id

    def _warn_once(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._say(f"{what}; metrics.jsonl in {self._run_dir} is complete")

    def _say(self, what: str) -> None:
        tqdm.write(f"MLflow at {_without_login(self._uri)} {what}", file=sys.stderr)


def _without_login(text: str) -> str:
    return re.sub(r"//[^/@\s]+@", "//", text)


def params_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return text for each value by ``section.field``, within MLflow's limits."""
    texts = {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in flat(config)
    }
    return {name: text[:MAX_PARAM_CHARS] for name, text in texts.items()}
