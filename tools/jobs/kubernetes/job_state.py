"""State of training jobs of either kind, of their pods and of their place in Kueue's queues."""

from collections.abc import Iterator, Mapping
from typing import Any

from seqlm.launch.pod_job import QUEUE_LABEL, Operator, PodSettings
from tools.kubernetes.kubectl import Kubectl, Refused

WORKLOAD_KIND = "workloads.kueue.x-k8s.io"
QUEUE_KIND = "localqueues.kueue.x-k8s.io"
IN_ORDER = ("ContainerCreating", "PodInitializing")
"""Reasons to wait that pass."""
STARTS_AGAIN = "CrashLoopBackOff"
"""Says less than what the container said when it ended."""
KINDS: Mapping[Operator, str] = {
    "hyperpod": "hyperpodpytorchjobs.sagemaker.amazonaws.com",
    "kubeflow": "pytorchjobs.kubeflow.org",
}
"""Kinds of jobs, as kubectl takes them."""
OPERATORS: Mapping[Operator, str] = {
    "hyperpod": "HyperPod's training operator",
    "kubeflow": "Kubeflow's training operator",
}
ENDED = ("Completed", "Complete", "Succeeded", "Failed")
"""Conditions after which a job does nothing more; operators call success differently."""


def list_jobs(
    kubectl: Kubectl, operator: Operator, labels: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the jobs with these labels, newest first.

    Raises:
        ValueError: if the cluster does not know the kind.
    """
    try:
        found = kubectl.matching(KINDS[operator], {"app.kubernetes.io/name": "esm2", **labels})
    except ValueError as error:
        if "doesn't have a resource type" not in str(error):
            raise
        raise ValueError(
            f"{kubectl.where} does not know {KINDS[operator]}: {OPERATORS[operator]} is not installed"
            "; set training_operator in the cluster file and run make deploy"
        ) from None
    return sorted(
        found, key=lambda job: str(job["metadata"].get("creationTimestamp", "")), reverse=True
    )


def state(job: Mapping[str, Any]) -> str:
    """The condition that a job is in, by its operator; Waiting if it has not been seen yet."""
    conditions = job.get("status", {}).get("conditions") or []
    true = [found["type"] for found in conditions if found.get("status") == "True"]
    ended = [name for name in true if name in ENDED]
    return str((ended or true or ["Waiting"])[-1])


def has_ended(job: Mapping[str, Any]) -> bool:
    return state(job) in ENDED


def pod_problems(pod: Mapping[str, Any]) -> list[str]:
    """One line each; none if all is in order."""
    status = pod.get("status", {})
    found = [
        f"no node: {condition['message']}"
        for condition in status.get("conditions", [])
        if condition["type"] == "PodScheduled"
        and condition["status"] == "False"
        and condition.get("message")
    ]
    for container in _containers(status):
        found += waiting_problems(container)
        found += _endings(container)
    return found


def pod_failures(pod: Mapping[str, Any]) -> list[str]:
    """Return one line for each container of a pod that has failed, now or earlier."""
    return [
        line for container in _containers(pod.get("status", {})) for line in _endings(container)
    ]


def has_begun(pod: Mapping[str, Any]) -> bool:
    """Whether one of its containers has a log, which those before the main one may have, too."""
    status = pod.get("status", {})
    states = [
        {**found.get("lastState", {}), **found.get("state", {})} for found in _containers(status)
    ]
    return status.get("phase", "Pending") != "Pending" or any(
        "running" in state or "terminated" in state for state in states
    )


def waiting_problems(container: Mapping[str, Any]) -> list[str]:
    """Why a container does not begin, for its status."""
    waiting = container.get("state", {}).get("waiting", {})
    reason = waiting.get("reason", IN_ORDER[0])
    if reason in (*IN_ORDER, STARTS_AGAIN):
        return []
    return [f"{container['name']} waits: {waiting.get('message', reason)}"]


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses", [])
    yield from status.get("containerStatuses", [])


def _endings(container: Mapping[str, Any]) -> list[str]:
    """Return the container's last messages of a failure, now or earlier."""
    for when in ("state", "lastState"):
        ended = container.get(when, {}).get("terminated")
        if ended and ended["exitCode"]:
            said = (ended.get("message", "").strip().splitlines() or [ended.get("reason", "")])[-1]
            times = container.get("restartCount", 0)
            again = f", started again {times} time(s)" if times else ""
            return [f"{container['name']} ended with {ended['exitCode']}{again}: {said}"]
    return []


def queue_problems(kubectl: Kubectl, job: Mapping[str, Any]) -> list[str]:
    """Return one line per problem; none without a queue, with a quota, or without access to Kueue."""
    metadata = job["metadata"]
    if QUEUE_LABEL not in metadata.get("labels", {}):
        return []
    try:
        workloads = kubectl.matching(WORKLOAD_KIND, {})
    except Refused:
        return []
    return [
        f"no quota: {condition['message']}"
        for workload in workloads
        if any(
            owner["uid"] == metadata["uid"]
            for owner in workload["metadata"].get("ownerReferences", [])
        )
        for condition in workload.get("status", {}).get("conditions", [])
        if (condition["type"], condition["status"]) == ("QuotaReserved", "False")
        and condition.get("message")
    ]


def place_problems(kubectl: Kubectl, pods: PodSettings) -> list[str]:
    """Return missing parts of the pods' namespace: the file system, and a team's queue.

    Raises:
        ValueError: if the namespace itself is not there.
    """
    queue = pods.placement.queue
    if kubectl.find("namespace", pods.namespace) is None:
        comes = "with the team's quota (make deploy)" if queue else "with the cluster (make deploy)"
        raise ValueError(
            f"namespace {pods.namespace} is not there; it comes {comes}, or name another one"
        )
    problems = []
    claim = kubectl.find("persistentvolumeclaim", pods.claim)
    phase = claim.get("status", {}).get("phase") if claim else None
    if phase != "Bound":
        problems.append(
            f"claim {pods.claim}: {phase or 'not there'}; pods get the Lustre file system by it. make deploy "
            "makes it, kubectl describe pvc says why it is not bound"
        )
    if queue and kubectl.find(QUEUE_KIND, queue) is None:
        problems.append(f"queue {queue} is not there; it comes with the team's quota (make deploy)")
    return problems
