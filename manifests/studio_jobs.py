"""Kubernetes objects that make Studio's partitions: jobs that mount the file system."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from config.resource_names import LUSTRE_CLAIM
from config.studio import STUDIO_FOLDER
from manifests.lustre_volumes import SYSTEM_NAMESPACE

NAME = "studio-partitions"
PROGRAM = Path(__file__).parents[1] / "lifecycle" / "slurm" / "studio" / "partitions.py"
"""The same as on Slurm's controller."""
# AWS's own image of its command, on Amazon Linux 2023, whose package manager brings Python 3.9; by the digest
# of all architectures.
IMAGE = (
    "public.ecr.aws/aws-cli/aws-cli:2.37.4@sha256:"
    "fdd8d1fcbea9c371678dee5a40df8b178c7a781b4586605756ee28114c97ead6"
)
EVERY_MINUTES = 5
SECONDS_PER_RUN = 1800
"""A partition that is removed may hold much."""


def service_account() -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(NAME)}


def program() -> dict[str, Any]:
    """The program, by its contents: pods that run keep the one that they began with."""
    text = PROGRAM.read_text()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(_program_name()),
        "immutable": True,
        "data": {PROGRAM.name: text},
    }


def queue_job(requests_url: str, acknowledgements_url: str, region: str) -> dict[str, Any]:
    """Answers, every few minutes and one at a time, what has been queued; ends when nothing is left."""
    queues = ["--requests", requests_url, "--acknowledgements", acknowledgements_url, "--region", region]
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": _metadata(NAME),
        "spec": {
            "schedule": f"*/{EVERY_MINUTES} * * * *",
            "concurrencyPolicy": "Forbid",
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"spec": _job(["drain", *queues], service_account_name=NAME)},
        },
    }


def shared_job(uids: Sequence[int]) -> dict[str, Any]:
    """Makes the partition that all spaces share, once; another list of users is another job."""
    spec = _job(["shared", "--uids", ",".join(str(uid) for uid in uids)], service_account_name=None)
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(f"studio-shared-{digest}"),
        "spec": spec,
    }


def _metadata(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": SYSTEM_NAMESPACE}


def _program_name() -> str:
    return f"{NAME}-{hashlib.sha256(PROGRAM.read_bytes()).hexdigest()[:8]}"


def _job(arguments: Sequence[str], *, service_account_name: str | None) -> dict[str, Any]:
    root = f"/{STUDIO_FOLDER}"
    pod: dict[str, Any] = {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "partitions",
                "image": IMAGE,
                "command": ["python3", f"/program/{PROGRAM.name}"],
                "args": [arguments[0], "--root", root, *arguments[1:]],
                "env": [{"name": "HOME", "value": "/tmp"}, {"name": "AWS_PAGER", "value": ""}],
                "securityContext": {
                    "runAsUser": 0,
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "FOWNER", "DAC_OVERRIDE"]},
                },
                "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
                "volumeMounts": [
                    # Of the file system this folder alone, which is made if it is not there.
                    {"name": "fsx", "mountPath": root, "subPath": STUDIO_FOLDER},
                    {"name": "program", "mountPath": "/program", "readOnly": True},
                    {"name": "temporary", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            {"name": "fsx", "persistentVolumeClaim": {"claimName": LUSTRE_CLAIM}},
            {"name": "program", "configMap": {"name": _program_name()}},
            {"name": "temporary", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    if service_account_name:
        pod["serviceAccountName"] = service_account_name
    return {"backoffLimit": 3, "activeDeadlineSeconds": SECONDS_PER_RUN, "template": {"spec": pod}}
