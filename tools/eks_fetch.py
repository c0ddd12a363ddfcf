"""A run's results out of the shared file system: by a pod that sees it, for as long as that takes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tools.delivery import Delivery
from tools.jobs import FETCH
from tools.kubectl import Kubectl, Manifest
from tools.pod_states import waiting_problems
from workloads.esm2.launch.pod_job import RUN_DIR_ANNOTATION

POD_SECONDS = 3600
"""Then Kubernetes ends a pod that nobody has removed."""
START_SECONDS = 600
"""An image of this size takes minutes to a node that has not had it."""
POLL_SECONDS = 2.0
LARGEST_MIB = 16 << 10
"""Of a model or a table: ESM-2 3B has 11 GiB. It comes through the API server, at tens of MB/s."""
STAYS = "it stays on the shared file system, where pods with the claim fsx read it (docs/training-on-eks.md)"


def fetch(kubectl: Kubectl, job: Mapping[str, Any], to: Path) -> int:
    """Bring report, results and metrics, and of models and tables those that are not too large.

    Raises:
        ValueError: if there is nothing to bring, it came damaged, or the pod does not start.
    """
    run_dir = job["metadata"]["annotations"][RUN_DIR_ANNOTATION]
    pod = fetch_pod(job)
    name = pod["metadata"]["name"]
    kubectl.create(pod)
    try:
        _wait(kubectl, name)
        program = ["bash", "-c", f'{FETCH.read_text()}fetch_run "$@"', FETCH.name, run_dir, str(LARGEST_MIB)]
        with TemporaryFile() as archive:
            delivery = Delivery(archive)
            status = kubectl.stream("exec", name, "--", *program, say=delivery.take)
            return delivery.unpack(to, status=status, instead=STAYS)
    finally:
        kubectl.delete("pod", name)


def fetch_pod(job: Mapping[str, Any]) -> Manifest:
    """With the job's own image and nodes, which have it already, and next to nothing of them."""
    spec = job["spec"]
    replicas = spec.get("replicaSpecs") or list(spec["pytorchReplicaSpecs"].values())
    template = replicas[0]["template"]["spec"]
    [container] = template["containers"]
    sizes = {"cpu": "250m", "memory": "512Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"fetch-{secrets.token_hex(4)}",
            "namespace": job["metadata"]["namespace"],
            "labels": {"app.kubernetes.io/name": "esm2-fetch"},
        },
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": POD_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": template["securityContext"],
            "nodeSelector": template["nodeSelector"],
            "tolerations": template["tolerations"],
            "containers": [
                {
                    "name": "fetch",
                    "image": container["image"],
                    "command": ["sleep", str(POD_SECONDS)],
                    "securityContext": container["securityContext"],
                    "resources": {"requests": sizes, "limits": sizes},
                    "volumeMounts": [m for m in container["volumeMounts"] if m["name"] == "shared"],
                }
            ],
            "volumes": [volume for volume in template["volumes"] if volume["name"] == "shared"],
        },
    }


def _wait(kubectl: Kubectl, name: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        status = (kubectl.find("pod", name) or {}).get("status", {})
        if status.get("phase") == "Running":
            return
        bad = [why for found in status.get("containerStatuses", []) for why in waiting_problems(found)]
        if status.get("phase") in ("Failed", "Succeeded"):
            bad.append(status.get("message", status["phase"]))
        if bad:
            raise ValueError(f"the pod that fetches does not start: {bad[0]}")
        time.sleep(POLL_SECONDS)
    raise ValueError(
        f"the pod that fetches has not started in {START_SECONDS} s: no node has room for it, or the image "
        "is long in coming; try again, kubectl describe pod says more"
    )
