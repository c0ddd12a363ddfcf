"""Copy a run's metrics to MLflow.

The store is the configured URI, else ``MLFLOW_TRACKING_URI``, else the folder ``mlruns``. SageMaker's
managed MLflow is given by its ARN; the plugin sagemaker-mlflow reaches it, signing with boto3's credentials.
With mlflow-skinny a local store is a plain folder: MLflow's default, SQLite, needs sqlalchemy and the full
package. MLflow 3 asks for ``MLFLOW_ALLOW_FILE_STORE`` before it writes one, which is set here.
``mlflow ui --backend-store-uri mlruns`` of a full MLflow shows it.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.training.config import flat
from workloads.training.whole_file import write_whole

from .mirror import Entry, Mirror, RunStatus, without_login

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
RUN_ID_FILE = "mlflow_run_id"


class MlflowMirror(Mirror):
    """One MLflow run: the one whose id is in the run folder, or else a new one."""

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
        self._run_id = self._open_run()

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


def params_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return text for each value by ``section.field``, within MLflow's limits."""
    texts = {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in flat(config)
    }
    return {name: without_login(text)[:MAX_PARAM_CHARS] for name, text in texts.items()}
