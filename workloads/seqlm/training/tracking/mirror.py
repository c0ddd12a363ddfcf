"""Copies of a run's metrics and configuration in MLflow and W&B, each sent by a thread of its own.

A slow server never slows a step, and one that is down costs one warning. Metrics wait in memory and are sent
when it is back; ``metrics.jsonl`` has them in any case.
"""

import json
import logging
import os
import re
import secrets
import shlex
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from seqlm.training.config import flat
from seqlm.training.whole_file import write_whole

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
Entry = tuple[str, float, int, int]
"""Name, value, timestamp in ms, step."""

SEND_EVERY_SECONDS = 5.0
RETRY_AFTER_SECONDS = 60.0
CLOSE_TIMEOUT_SECONDS = 10.0
"""Time that the end of a run waits for slow servers; stopped jobs have 30 seconds (Slurm, Kubernetes)."""
MAX_WAITING_METRICS = 100_000
"""About 20 MB; of a longer outage the oldest are given up."""
MAX_METRICS_PER_BATCH = 1000
"""Limit of MLflow's REST interface, which its file store shares."""
MAX_MESSAGE_CHARS = 200

# MLflow reads these when it is imported. What the user has set stays.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
# The address of the run, printed to stdout at its end, would stand amid the output of the program.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
# MLflow would try for four minutes before it says a word; the mirror's thread tries again itself.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")

# Limits of MLflow's REST interface, which the file store shares.
MAX_PARAMS_PER_BATCH = 100
MAX_PARAM_CHARS = 6000
MANAGED = re.compile(r"arn:aws(?:-us-gov)?:sagemaker:[a-z0-9-]+:\d{12}:mlflow-(?:app|tracking-server)/[\w-]+")
"""The ARNs that the plugin knows an address for."""
MLFLOW_RUN_FILE = "mlflow_run_id"

# W&B would report errors of its own to its makers. What the user has set stays.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
WANDB_RUN_FILE = "wandb_run_id"
WANDB_SETTINGS: Mapping[str, Any] = {
    # Records of the machine and of the code that W&B would make by itself.
    **dict.fromkeys(("disable_code", "disable_git", "disable_job_creation", "x_disable_meta"), True),
    **dict.fromkeys(("x_disable_machine_info", "x_disable_stats"), True),
    **{"x_save_requirements": False, "silent": True, "console": "off"},
    "init_timeout": 2 * CLOSE_TIMEOUT_SECONDS,
    # The exit of the process, too, waits for an upload no longer than this.
    **{"finish_timeout": CLOSE_TIMEOUT_SECONDS - 2, "finish_timeout_raises": True},
    "stop_fn": lambda: None,  # the button of W&B's page would interrupt this process
}
WANDB_EXIT_CODES: Mapping[RunStatus, int] = {"FINISHED": 0, "FAILED": 1, "KILLED": 255}
"""W&B shows 255 as killed."""


class Mirror(ABC):
    """Copy of one run; ``place`` names it in messages."""

    def __init__(self, run_dir: Path, place: str) -> None:
        self._run_dir, self._place = run_dir, place
        self._waiting: list[Entry] = []
        self._status: RunStatus | None = None
        self._warned = False
        self._opened = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=place, daemon=True)

    @abstractmethod
    def _prepare(self) -> None:
        """Import packages, which takes seconds. ValueError for a place that cannot be used."""

    @abstractmethod
    def _open(self) -> None:
        """Open the run whose id is in the run folder, or else a new one."""

    @abstractmethod
    def _log(self, batch: Sequence[Entry]) -> None: ...

    @abstractmethod
    def _finish(self, status: RunStatus) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        now_ms = time.time_ns() // 1_000_000
        with self._condition:
            self._waiting += [(name, value, now_ms, step) for name, value in values.items()]
            del self._waiting[:-MAX_WAITING_METRICS]

    def end(self, status: RunStatus) -> None:
        """Have the thread send the rest and end; follow it by ``wait``."""
        with self._condition:
            self._status, self._deadline = status, time.monotonic() + CLOSE_TIMEOUT_SECONDS
            self._condition.notify()

    def wait(self) -> None:
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive() or self._waiting:
            self._warn_once("has not taken every metric of this run")

    def _work(self) -> None:
        try:
            self._prepare()
        except ValueError as error:
            self._warn_once(str(error))
            return
        except ImportError as error:
            self._warn_once(
                f'is off: a package is missing ({error}); pip install "seqlm[tracking]" brings it'
            )
            return
        wait_seconds = 0.0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._status is not None, wait_seconds)
                status = self._status
            try:
                self._send()
                if status is not None:
                    self._finish(status)
                if self._warned and not self._waiting:
                    self._say("is back and up to date")
                    self._warned = False
                wait_seconds = SEND_EVERY_SECONDS
            except Exception as error:  # of a client, its plugin or the network: none may end a run
                self._warn_once(f"does not take this run ({shortened(error)})")
                wait_seconds = RETRY_AFTER_SECONDS
            if status is not None:
                return

    def _send(self) -> None:
        if not self._opened:
            self._open()
            self._opened = True
        while self._waiting:
            batch = self._waiting[:MAX_METRICS_PER_BATCH]
            self._log(batch)
            with self._condition:
                # Identity, since an overflow may have dropped the head meanwhile.
                sent = {id(entry) for entry in batch}
                self._waiting = [entry for entry in self._waiting if id(entry) not in sent]

    def _warn_once(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._say(f"{what}; metrics.jsonl in {self._run_dir} is complete")

    def _say(self, what: str) -> None:
        tqdm.write(f"{without_login(self._place)} {what}", file=sys.stderr)


class MlflowMirror(Mirror):
    """One MLflow run: the one whose id is in the run folder, or else a new one.

    The store is the configured URI, else ``MLFLOW_TRACKING_URI``, else the folder ``mlruns``. SageMaker's
    managed MLflow is given by its ARN; the plugin sagemaker-mlflow reaches it, signing with boto3's
    credentials. With mlflow-skinny a local store is a plain folder: MLflow's default, SQLite, needs
    sqlalchemy and the full package. MLflow 3 asks for ``MLFLOW_ALLOW_FILE_STORE`` before it writes one, which
    is set above. ``mlflow ui --backend-store-uri mlruns`` of a full MLflow shows it.
    """

    def __init__(self, run_dir: Path, *, uri: str | None, experiment: str, params: Mapping[str, Any]) -> None:
        # Settled now: the thread must not depend on a later change of the working folder.
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or (Path.cwd() / "mlruns").as_uri()
        super().__init__(run_dir, f"MLflow at {self._uri}")
        self._experiment = experiment
        self._params = params_of(params)
        self._client: Any = None
        self._run_id = ""
        self._thread.start()

    def _prepare(self) -> None:
        if self._uri.startswith("arn:") and not MANAGED.fullmatch(self._uri):
            raise ValueError("is no app or tracking server of SageMaker; give the ARN of one")
        import mlflow  # here, since it takes seconds

        if self._uri.startswith("arn:"):
            # The plugin asks for the process's, not for the client's.
            mlflow.set_tracking_uri(self._uri)
        else:
            # The plugin takes every other store for an ARN, and MLflow complains of that with each request.
            logging.getLogger("mlflow.tracking.request_header.registry").setLevel(logging.ERROR)

    def _log(self, batch: Sequence[Entry]) -> None:
        from mlflow.entities import Metric

        self._client.log_batch(self._run_id, metrics=[Metric(*entry) for entry in batch])

    def _finish(self, status: RunStatus) -> None:
        self._client.set_terminated(self._run_id, status)

    def _open(self) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        self._client = MlflowClient(tracking_uri=self._uri)
        id_file = self._run_dir / MLFLOW_RUN_FILE
        if id_file.exists():
            self._run_id = id_file.read_text().strip()
            try:
                if self._client.get_run(self._run_id).info.lifecycle_stage == "active":
                    # The parameters stay as first logged: MLflow does not let them change.
                    self._client.update_run(self._run_id, status="RUNNING")
                    return
            except MlflowException as error:
                # Another store than last time, or the run was deleted there: a new one.
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
        experiment = self._client.get_experiment_by_name(self._experiment)
        experiment_id = (
            experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        )
        run = self._client.create_run(experiment_id, run_name=self._run_dir.name)
        self._run_id = str(run.info.run_id)
        write_whole(id_file, self._run_id + "\n")
        params = [Param(name, value) for name, value in self._params.items()]
        for start in range(0, len(params), MAX_PARAMS_PER_BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS_PER_BATCH])


class WandbMirror(Mirror):
    """One run of W&B: the one whose id is in the run folder, or else a new one.

    W&B's own process sends the metrics from ``<run>/wandb``. Without a network or an account at the start of
    a run, they stay in that folder until ``wandb sync``. ``WANDB_MODE``, ``WANDB_ENTITY`` and W&B's other
    variables apply.
    """

    def __init__(self, run_dir: Path, *, project: str, config: Mapping[str, Any]) -> None:
        super().__init__(run_dir, f"W&B project {project}")
        self._project = project
        self._config = json.loads(without_login(json.dumps(config)))
        self._run: Any = None
        self._thread.start()

    def _prepare(self) -> None:
        from wandb import init  # noqa: F401  # import wandb alone succeeds on any folder of this name

    def _open(self) -> None:
        import wandb

        id_file = self._run_dir / WANDB_RUN_FILE
        if not id_file.exists():
            write_whole(id_file, secrets.token_hex(8) + "\n")
        try:
            self._init(id_file.read_text().strip())
        except Exception as error:  # of the client or the network
            wandb.teardown()  # ends W&B's process, which takes an id once
            self._init(id_file.read_text().strip(), mode="offline")
            send = f"cd {shlex.quote(str(self._run_dir))} && wandb sync"
            self._say(f"cannot be reached ({shortened(error)}); this sends the run later: {send}")
        # W&B's own steps must not repeat, as those of a resumed run may.
        self._run.define_metric("*", step_metric="step")

    def _init(self, run_id: str, mode: Any = None) -> None:
        import wandb

        wandb.setup(wandb.Settings(silent=True))  # it does not ask for a key either
        folder, name = self._run_dir, self._run_dir.name
        self._run = wandb.init(
            **{"project": self._project, "dir": folder, "name": name, "id": run_id, "config": self._config},
            **{"resume": "allow", "reinit": "create_new", "mode": mode, "settings": dict(WANDB_SETTINGS)},
        )

    def _log(self, batch: Sequence[Entry]) -> None:
        for step, entries in groupby(batch, key=lambda entry: entry[3]):
            self._run.log({"step": step, **{name: value for name, value, _, _ in entries}})

    def _finish(self, status: RunStatus) -> None:
        self._run.finish(exit_code=WANDB_EXIT_CODES[status])


def params_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return text for each value by ``section.field``, within MLflow's limits."""
    texts = {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in flat(config)
    }
    return {name: without_login(text)[:MAX_PARAM_CHARS] for name, text in texts.items()}


def shortened(error: Exception) -> str:
    """Return an error in one line without passwords."""
    return f"{type(error).__name__}: {without_login(str(error).partition(chr(10))[0])[:MAX_MESSAGE_CHARS]}"


def without_login(text: str) -> str:
    """Return a text without user, password and query of its addresses; a query may be a signature."""
    without_query = re.sub(r"(\w://[^\s\"'?]*)\?[^\s\"']*", r"\1", text)
    return re.sub(r"//[^/\s\"']*@", "//", without_query)
