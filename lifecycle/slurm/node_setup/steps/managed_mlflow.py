"""Variables of jobs: the HTTP proxy, and address and credentials of SageMaker's managed MLflow."""

import json

from node_setup.endpoint import http_get
from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.service import install_program, remove_units, run_unit

UNIT = "job-credentials.service"
PORT = 9911
ENVIRONMENT = "/etc/node-setup/training_environment.json"
"""Environment variables that the training code sets for its processes (``seqlm.launch.slurm_step``)."""
SECONDS_TO_ANSWER = 60


def apply(node: Node) -> None:
    """Install the service and the variables, or remove those that the deployment does not have.

    Missing credentials are a warning, because runs then lack only their copy in MLflow.

    Raises:
        SetupError: if the service does not start.
    """
    mlflow = node.deployment.mlflow
    if mlflow is None:
        remove_units(node, (UNIT,))
        _install_variables(node, {})
        return
    run_unit(
        node,
        UNIT,
        changed=install_program(node, "job_credentials"),
        role_arn=mlflow.role_arn,
        session_name=node.facts.host_name,
        region=node.settings.region,
        port=str(PORT),
    )
    url = f"http://127.0.0.1:{PORT}/credentials"
    variables = {
        "MLFLOW_TRACKING_URI": mlflow.tracking_uri,
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": url,
    }
    _install_variables(node, variables)
    try:
        node.host.wait_for(
            # The answer is a secret and must not be shown.
            lambda: bool(json.loads(http_get(url))["AccessKeyId"]),
            timeout_seconds=SECONDS_TO_ANSWER,
            what=f"{UNIT} has no credentials of {mlflow.role_arn}",
            remedy=f"see `journalctl --unit {UNIT}` on the node",
        )
    except SetupError as error:
        node.warn(f"runs are not copied to MLflow: {error}")


def _install_variables(node: Node, variables: dict[str, str]) -> None:
    """Write the variables and those of the proxy, or remove the file if there are none."""
    every = {**node.settings.proxy, **variables}
    if every:
        node.install(ENVIRONMENT, json.dumps(every, indent=2, sort_keys=True) + "\n")
    else:
        node.remove(ENVIRONMENT)
