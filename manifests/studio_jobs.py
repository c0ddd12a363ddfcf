"""Kubernetes objects that make Studio's partitions: jobs that mount the file system."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from config.resource_names import LUSTRE_CLAIM
from config.studio import STUDIO_FOLDER
from manifests.objects import (
    ROOT_SECURITY,
    SYSTEM_NAMESPACE,
    Object,
    folder_pod,
    job,
    kubernetes_object,
)

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


def service_account() -> Object:
    return kubernetes_object("v1", "ServiceAccount", NAME, SYSTEM_NAMESPACE)


def program() -> Object:
    """The program, by its contents: pods that run keep the one that they began with."""
    data = {PROGRAM.name: PROGRAM.read_text()}
    return kubernetes_object("v1", "ConfigMap", _program_name(), SYSTEM_NAMESPACE, immutable=True, data=data)


def queue_job(requests_url: str, acknowledgements_url: str, region: str) -> Object:
    """Answers, every few minutes and one at a time, what has been queued; ends when nothing is left."""
    queues = ["--requests", requests_url, "--acknowledgements", acknowledgements_url, "--region", region]
    spec = {
        "schedule": f"*/{EVERY_MINUTES} * * * *",
        "concurrencyPolicy": "Forbid",
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {"spec": _spec(["drain", *queues], {"serviceAccountName": NAME})},
    }
    return kubernetes_object("batch/v1", "CronJob", NAME, SYSTEM_NAMESPACE, spec=spec)


def shared_job(uids: Sequence[int]) -> Object:
    """Makes the partition that all spaces share, once; another list of users is another job."""
    return job("studio-shared", _spec(["shared", "--uids", ",".join(map(str, uids))], {}))


def _program_name() -> str:
    return f"{NAME}-{hashlib.sha256(PROGRAM.read_bytes()).hexdigest()[:8]}"


def _spec(arguments: Sequence[str], account: Object) -> Object:
    root = f"/{STUDIO_FOLDER}"
    container = {
        "name": "partitions",
        "image": IMAGE,
        "command": ["python3", f"/program/{PROGRAM.name}"],
        "args": [arguments[0], "--root", root, *arguments[1:]],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "AWS_PAGER", "value": ""}],
        "securityContext": ROOT_SECURITY,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [
            # Only this folder of the file system, which is created if it does not exist.
            {"name": "fsx", "mountPath": root, "subPath": STUDIO_FOLDER},
            {"name": "program", "mountPath": "/program", "readOnly": True},
            {"name": "temporary", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "fsx", "persistentVolumeClaim": {"claimName": LUSTRE_CLAIM}},
        {"name": "program", "configMap": {"name": _program_name()}},
        {"name": "temporary", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
    pod = folder_pod(container, volumes) | account
    return {"backoffLimit": 3, "activeDeadlineSeconds": SECONDS_PER_RUN, "template": {"spec": pod}}
