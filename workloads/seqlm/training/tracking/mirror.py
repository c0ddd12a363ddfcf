"""Copies of a run's metrics and configuration in MLflow and W&B, each sent by a thread of its own.

A slow server never slows a step, and an unreachable one costs one warning. Metrics wait in memory and are
sent when it is back. ``metrics.jsonl`` has them in any case.
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
from typing import Any, Literal, NamedTuple

from tqdm import tqdm

from seqlm.training.config import flat
from seqlm.training.whole_file import write_whole

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]


class Entry(NamedTuple):
    """Value of a metric, with the fields of MLflow's ``Metric`` in its order."""

    name: str
    value: float
    timestamp_ms: int
    step: int


SEND_EVERY_SECONDS = 5.0
RETRY_AFTER_SECONDS = 60.0
CLOSE_TIMEOUT_SECONDS = 10.0
"""Time that the end of a run waits for slow servers. Stopped jobs have 30 seconds (Slurm, Kubernetes)."""
MAX_WAITING_METRICS = 100_000
"""Number of metrics that wait in memory, about 20 MB. In a longer outage the oldest ones are dropped."""
MAX_METRICS_PER_BATCH = 1000
"""Limit of MLflow's REST interface, which its file store shares."""
MAX_PARAMS_PER_BATCH = 100
"""Limit of MLflow's REST interface, which its file store shares."""
MAX_PARAM_CHARS = 6000
"""Limit of MLflow's REST interface, which its file store shares."""
MAX_MESSAGE_CHARS = 200
"""Length to which an error of a server is cut in a message."""

# MLflow reads these variables when it is imported. The user's own values stay.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
# Otherwise MLflow prints the address of the run to stdout, in the middle of the program's output.
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
# MLflow would retry for four minutes before it raises an error. The mirror's thread has its own retries.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
MANAGED = re.compile(
    r"arn:aws(?:-us-gov)?:sagemaker:[a-z0-9-]+:\d{12}:mlflow-(?:app|tracking-server)/[\w-]+"
)
"""ARNs of SageMaker's managed MLflow that the plugin can reach."""
MLFLOW_RUN_FILE = "mlflow_run_id"
"""File in a run's folder with the id of its run in MLflow."""

# W&B would report its own errors to its makers. The user's own value stays.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
WANDB_RUN_FILE = "wandb_run_id"
"""File in a run's folder with the id of its run in W&B."""
WANDB_SETTINGS: Mapping[str, Any] = {
    # W&B would record the machine and the code.
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "silent": True,
    "console": "off",
    "init_timeout": 2 * CLOSE_TIMEOUT_SECONDS,
    # The exit of the process does not wait longer than this for an upload.
    "finish_timeout": CLOSE_TIMEOUT_SECONDS - 2,
    "finish_timeout_raises": True,
    # By default, the stop button of W&B's page interrupts this process.
    "stop_fn": lambda: None,
}
WANDB_EXIT_CODES: Mapping[RunStatus, int] = {"FINISHED": 0, "FAILED": 1, "KILLED": 255}
"""W&B shows 255 as killed."""


class Mirror(ABC):
    """Copy of one run, sent by a thread.

    Args:
        run_dir: folder of the run.
        place: name of the copy in messages.
    """

    def __init__(self, run_dir: Path, place: str) -> None:
        self._run_dir = run_dir
        self._place = place
        self._waiting: list[Entry] = []
        self._status: RunStatus | None = None
        self._warned = False
        self._opened = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=place, daemon=True)

    @abstractmethod
    def _prepare(self) -> None:
        """Import packages, which takes seconds.

        Raises:
            ValueError: if the server or folder cannot be used.
        """

    @abstractmethod
    def _open(self) -> None:
        """Open the run with the id in the run's folder, or else a new one."""

    @abstractmethod
    def _log(self, batch: Sequence[Entry]) -> None:
        """Send metrics."""

    @abstractmethod
    def _finish(self, status: RunStatus) -> None:
        """Mark the run with its status."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Queue the metrics of a step."""
        now_ms = time.time_ns() // 1_000_000
        with self._condition:
            self._waiting += [Entry(name, value, now_ms, step) for name, value in values.items()]
            del self._waiting[:-MAX_WAITING_METRICS]

    def end(self, status: RunStatus) -> None:
        """Make the thread send the rest and end. Call ``wait`` afterwards."""
        with self._condition:
            self._status = status
            self._deadline = time.monotonic() + CLOSE_TIMEOUT_SECONDS
            self._condition.notify()

    def wait(self) -> None:
        """Wait until the thread has ended, or for ``CLOSE_TIMEOUT_SECONDS`` since ``end``."""
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
            except (
                Exception
            ) as error:  # no error of a client, its plugin or the network may end a run
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
                # By identity, because an overflow may have dropped the first entries.
                sent = {id(entry) for entry in batch}
                self._waiting = [entry for entry in self._waiting if id(entry) not in sent]

    def _warn_once(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._say(f"{what}; metrics.jsonl in {self._run_dir} is complete")

    def _say(self, what: str) -> None:
        tqdm.write(f"{without_login(self._place)} {what}", file=sys.stderr)


class MlflowMirror(Mirror):
    """Run in MLflow.

    The store is the configured URI, else ``MLFLOW_TRACKING_URI``, else the folder ``mlruns``. For SageMaker's
    managed MLflow, the URI is its ARN. The plugin sagemaker-mlflow reaches it, and signs with boto3's
    credentials.

    With mlflow-skinny a local store is a folder, because MLflow's default, SQLite, needs sqlalchemy and the
    full package. MLflow 3 writes a folder only with ``MLFLOW_ALLOW_FILE_STORE``, which is set above. The
    command ``mlflow ui --backend-store-uri mlruns`` of a full MLflow shows it.

    Args:
        run_dir: folder of the run.
        uri: URI of the store; None uses the default.
        experiment: name of the experiment, which is created if it is missing.
        params: configuration of the run.
    """

    def __init__(
        self, run_dir: Path, *, uri: str | None, experiment: str, params: Mapping[str, Any]
    ) -> None:
        # Resolved here, because the working folder may change later.
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
        import mlflow  # takes seconds

        if self._uri.startswith("arn:"):
            # The plugin reads the URI of the process, not that of the client.
            mlflow.set_tracking_uri(self._uri)
        else:
            # The plugin parses every URI as an ARN, and MLflow warns about the failure at each request.
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
                    # The parameters stay as they were first logged, because MLflow refuses changes.
                    self._client.update_run(self._run_id, status="RUNNING")
                    return
            except MlflowException as error:
                # The store is another one, or the run was deleted there. A new run is created.
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment:
            experiment_id = experiment.experiment_id
        else:
            experiment_id = self._client.create_experiment(self._experiment)
        run = self._client.create_run(experiment_id, run_name=self._run_dir.name)
        self._run_id = str(run.info.run_id)
        write_whole(id_file, self._run_id + "\n")
        params = [Param(name, value) for name, value in self._params.items()]
        for start in range(0, len(params), MAX_PARAMS_PER_BATCH):
            self._client.log_batch(
                self._run_id, params=params[start : start + MAX_PARAMS_PER_BATCH]
            )


class WandbMirror(Mirror):
    """Run in W&B.

    W&B's own process sends the metrics from ``<run>/wandb``. If a run starts without a network or an account,
    they stay in that folder until ``wandb sync``. ``WANDB_MODE``, ``WANDB_ENTITY`` and W&B's other variables
    apply.

    Args:
        run_dir: folder of the run.
        project: name of the project.
        config: configuration of the run.
    """

    def __init__(self, run_dir: Path, *, project: str, config: Mapping[str, Any]) -> None:
        super().__init__(run_dir, f"W&B project {project}")
        self._project = project
        self._config = json.loads(without_login(json.dumps(config)))
        self._run: Any = None
        self._thread.start()

    def _prepare(self) -> None:
        from wandb import init  # noqa: F401  # "import wandb" succeeds for any folder of this name

    def _open(self) -> None:
        import wandb

        id_file = self._run_dir / WANDB_RUN_FILE
        if not id_file.exists():
            write_whole(id_file, secrets.token_hex(8) + "\n")
        try:
            self._init(id_file.read_text().strip())
        except Exception as error:  # the client and the network raise many kinds
            wandb.teardown()  # ends W&B's process, which accepts an id only once
            self._init(id_file.read_text().strip(), mode="offline")
            send = f"cd {shlex.quote(str(self._run_dir))} && wandb sync"
            self._say(f"cannot be reached ({shortened(error)}); this sends the run later: {send}")
        # W&B's own steps must not repeat, but those of a resumed run may.
        self._run.define_metric("*", step_metric="step")

    def _init(self, run_id: str, mode: Any = None) -> None:
        import wandb

        wandb.setup(wandb.Settings(silent=True))  # without a prompt for a key
        self._run = wandb.init(
            project=self._project,
            dir=self._run_dir,
            name=self._run_dir.name,
            id=run_id,
            config=self._config,
            resume="allow",
            reinit="create_new",
            mode=mode,
            settings=dict(WANDB_SETTINGS),
        )

    def _log(self, batch: Sequence[Entry]) -> None:
        for step, entries in groupby(batch, key=lambda entry: entry.step):
            self._run.log({"step": step, **{entry.name: entry.value for entry in entries}})

    def _finish(self, status: RunStatus) -> None:
        self._run.finish(exit_code=WANDB_EXIT_CODES[status])


def params_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a configuration as texts by ``section.field``, within MLflow's limits."""
    params: dict[str, str] = {}
    for name, value in flat(config):
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        params[name] = without_login(text)[:MAX_PARAM_CHARS]
    return params


def shortened(error: Exception) -> str:
    """Return the first line of an error, without passwords."""
    first_line, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {without_login(first_line)[:MAX_MESSAGE_CHARS]}"


def without_login(text: str) -> str:
    """Return a text without user, password and query of its addresses. A query may be a signature."""
    without_query = re.sub(r"(\w://[^\s\"'?]*)\?[^\s\"']*", r"\1", text)
    return re.sub(r"//[^/\s\"']*@", "//", without_query)
