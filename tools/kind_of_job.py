"""Jobs of either kind in a namespace: what they are called, and how they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.kubectl import Kubectl
from workloads.esm2.launch.pod_job import Operator

KINDS: Mapping[Operator, str] = {
    "hyperpod": "hyperpodpytorchjobs.sagemaker.amazonaws.com",
    "kubeflow": "pytorchjobs.kubeflow.org",
}
OPERATORS: Mapping[Operator, str] = {
    "hyperpod": "HyperPod's training operator",
    "kubeflow": "Kubeflow's training operator",
}
ENDED = ("Completed", "Complete", "Succeeded", "Failed")
"""Conditions after which a job does nothing more; operators call success differently."""


def kind_of(operator: Operator) -> str:
    """As kubectl takes it."""
    return KINDS[operator]


def list_jobs(kubectl: Kubectl, operator: Operator, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The newest first.

    Raises:
        ValueError: if the cluster does not know the kind.
    """
    try:
        found = kubectl.matching(kind_of(operator), {"app.kubernetes.io/name": "esm2", **labels})
    except ValueError as error:
        if "doesn't have a resource type" not in str(error):
            raise
        raise ValueError(
            f"{kubectl.where} does not know {kind_of(operator)}: {OPERATORS[operator]} is not installed "
            "(the cluster file's training_operator; make deploy)"
        ) from None
    return sorted(found, key=lambda job: str(job["metadata"].get("creationTimestamp", "")), reverse=True)


def state(job: Mapping[str, Any]) -> str:
    """The condition that a job is in, by its operator; Waiting if it has not been seen yet."""
    conditions = job.get("status", {}).get("conditions") or []
    true = [found["type"] for found in conditions if found.get("status") == "True"]
    ended = [name for name in true if name in ENDED]
    return str((ended or true or ["Waiting"])[-1])


def has_ended(job: Mapping[str, Any]) -> bool:
    return state(job) in ENDED


def active_jobs(kubectl: Kubectl, operator: Operator, labels: Mapping[str, str]) -> list[str]:
    """Names of jobs that have not ended."""
    return [job["metadata"]["name"] for job in list_jobs(kubectl, operator, labels) if not has_ended(job)]
