"""A run's results out of the shared file system: by a pod that sees it, for as long as that takes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.jobs import LARGEST_MIB, unpack
from tools.kubectl import Kubectl, Manifest
from workloads.esm2.launch.kubernetes_job import RUN_DIR_ANNOTATION

ON_POD = Path(__file__).with_name("fetch_on_pod.sh")
POD_SECONDS = 1800
"""Then Kubernetes ends a pod that nobody has removed."""
START_SECONDS = 600
"""An image of this size takes minutes to a node that has not had it."""
POLL_SECONDS = 2.0
BAD_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName")
COPY_INSTEAD = (
    "copy it below the data bucket's folder of the shared file system, from where it is exported to S3 "
    "(docs/training-on-eks.md)"
)


def fetch(kubectl: Kubectl, job: Mapping[str, Any], to: Path) -> int:
    """Bring report, results, metrics and the model; its size permitting.

    Raises:
        ValueError: if there is nothing to bring, it came damaged, or the pod does not start.
    """
    run_dir = job["metadata"]["annotations"][RUN_DIR_ANNOTATION]
    pod = fetch_pod(job)
    name = pod["metadata"]["name"]
    kubectl.create(pod)
    try:
        _wait(kubectl, name)
        said: list[str] = []
        command = (
            "exec",
            name,
            "--",
            "bash",
            "-c",
            ON_POD.read_text(),
            ON_POD.name,
            run_dir,
            str(LARGEST_MIB),
        )
        status = kubectl.stream(*command, say=said.append)
        return unpack(said, to, status=status, instead=COPY_INSTEAD)
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
        waiting = [found.get("state", {}).get("waiting", {}) for found in status.get("containerStatuses", [])]
        bad = [found for found in waiting if found.get("reason") in BAD_IMAGE]
        if bad or status.get("phase") in ("Failed", "Succeeded"):
            why = bad[0].get("message", bad[0]["reason"]) if bad else status.get("message", status["phase"])
            raise ValueError(f"the pod that fetches does not start: {why}")
        time.sleep(POLL_SECONDS)
    raise ValueError(
        f"the pod that fetches has not started in {START_SECONDS} s: no node has room for it, or the image "
        "is long in coming; try again, kubectl describe pod says more"
    )
