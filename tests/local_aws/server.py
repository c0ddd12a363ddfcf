"""A local AWS to deploy to: moto's server with a stricter CloudFormation. Prints its URL when it listens."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

# Read when moto is imported: roles attach AWS's managed policies.
os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"

import yaml
from moto import backends
from moto.cloudtrail.responses import CloudTrailResponse
from moto.server import ThreadedMotoServer

from tests.local_aws import (
    cloudformation,
    eks_clusters,
    file_systems,
    hyperpod_cluster,
    mlflow_servers,
    permissions,
    refusals,
)


def lookup_events(self: CloudTrailResponse) -> str:
    """No audit trail; the CDK CLI looks into it for the cause of a failure, and waits for it."""
    return json.dumps({"Events": []})


_load_yaml = yaml.load


def load_template(text: str, Loader: Any) -> Any:
    """Read a template as JSON if it is: PyYAML takes half a minute for the templates of a cluster."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return _load_yaml(text, Loader=Loader)


def main() -> None:
    yaml.load = load_template
    for module in (
        cloudformation,
        eks_clusters,
        file_systems,
        hyperpod_cluster,
        mlflow_servers,
        permissions,
        refusals,
    ):
        module.install()
    # moto reads this folder at every request.
    modules = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: modules
    CloudTrailResponse.lookup_events = lookup_events  # type: ignore[attr-defined]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    # moto reads template URLs as path-style for hosts that contain "localhost" only.
    os.environ["AWS_ENDPOINT_URL"] = f"http://localhost:{server.get_host_and_port()[1]}"
    print(os.environ["AWS_ENDPOINT_URL"], flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
