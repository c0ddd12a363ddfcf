"""Records of jobs on EKS: pods that still exist, with what they request."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from config.facts.gpu_slices import RESOURCE_PREFIX, share_of_gpu
from seqlm.launch.neuron import DEVICE_RESOURCE
from seqlm.launch.pod_job import (
    GROUP_LABEL,
    INSTANCE_TYPE_LABEL,
    JOB_LABEL,
    QUEUE_LABEL,
    RUN_LABEL,
)
from seqlm.training.strict_yaml import shown
from tools.kubernetes.kubectl import Kubectl
from tools.usage.records import GPU, NEURON, Accounting, JobRecord

DEVICES: Mapping[str, str] = {"nvidia.com/gpu": GPU, DEVICE_RESOURCE: NEURON}
"""Devices that pods request, and their names in records."""
JOB_LABELS = (JOB_LABEL, "training.kubeflow.org/job-name", "batch.kubernetes.io/job-name")
"""Labels with the job of a pod: this project's, Kubeflow's and Kubernetes's own."""
OVER = ("Succeeded", "Failed")
"""Phases of a pod whose containers have ended."""
Pod = Mapping[str, Any]


def read_pods(kubectl: Kubectl) -> Accounting:
    """Return the records of all namespaces' pods that use a device, or that a job or a queue has.

    Raises:
        ValueError: if Kubernetes refuses, or a pod requests processors in an unknown form.
    """
    listed = kubectl.run("get", "pods", "--all-namespaces", "--output=json")
    pods = [pod for pod in json.loads(listed)["items"] if _is_billed(pod)]
    return Accounting(
        records=[_record(pod) for pod in pods],
        clock=int(time.time()),
        tracked=frozenset(DEVICES.values()),
        present=frozenset(
            pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] not in OVER
        ),
    )


def read_groups(kubectl: Kubectl) -> dict[str, str]:
    """Return the instance group of each node, by the node's name."""
    nodes = json.loads(kubectl.run("get", "nodes", "--output=json"))["items"]
    groups = {node["metadata"]["name"]: _labels(node).get(GROUP_LABEL, "") for node in nodes}
    return {name: group for name, group in groups.items() if group}


def _is_billed(pod: Pod) -> bool:
    """Return whether a pod is work of a team, and not a part of the cluster's own software."""
    labels = _labels(pod)
    return bool(_devices(pod)) or any(name in labels for name in (*JOB_LABELS, QUEUE_LABEL))


def _record(pod: Pod) -> JobRecord:
    labels = _labels(pod)
    metadata = pod["metadata"]
    namespace = metadata["namespace"]
    name = metadata["name"]
    job = next((labels[label] for label in JOB_LABELS if label in labels), name)
    started = pod["status"].get("startTime")
    return JobRecord(
        number=metadata["uid"],
        job=f"{namespace}/{job}",
        name=labels.get(RUN_LABEL, ""),
        user="",
        account=namespace,
        partition=labels.get(QUEUE_LABEL, ""),
        state=pod["status"]["phase"],
        start=_second(started) if started else None,
        end=_end(pod),
        num_nodes=1 if pod["spec"].get("nodeName") else 0,
        num_cpus=sum(_cpus(requests) for requests in _requests(pod)),
        devices=_devices(pod),
        nodes=pod["spec"].get("nodeName", ""),
    )


def _end(pod: Pod) -> int | None:
    """Return the end of the last container; None if one runs, or if no end is recorded."""
    if pod["status"]["phase"] not in OVER:
        return None
    ends = [
        found["state"]["terminated"]["finishedAt"]
        for found in pod["status"].get("containerStatuses", [])
        if found.get("state", {}).get("terminated", {}).get("finishedAt")
    ]
    return max(map(_second, ends), default=None)


def _labels(item: Mapping[str, Any]) -> Mapping[str, str]:
    labels: Mapping[str, str] = item["metadata"].get("labels") or {}
    return labels


def _requests(pod: Pod) -> Iterator[Mapping[str, str]]:
    """Yield the requests of each container that runs for the pod's whole time."""
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        # A limit without a request is also the request.
        yield {**resources.get("limits", {}), **resources.get("requests", {})}


def _devices(pod: Pod) -> dict[str, float]:
    """Return the numbers of devices by their names in records. A slice of a GPU is a part of one."""
    requests: Sequence[Mapping[str, str]] = list(_requests(pod))
    numbers: dict[str, float] = {
        record_name: sum(int(found.get(name, 0)) for found in requests)
        for name, record_name in DEVICES.items()
    }
    instance_type = pod["spec"].get("nodeSelector", {}).get(INSTANCE_TYPE_LABEL)
    for found in requests:
        for name, count in found.items():
            if name.startswith(RESOURCE_PREFIX):
                profile = name.removeprefix(RESOURCE_PREFIX)
                numbers[GPU] += int(count) * share_of_gpu(profile, instance_type)
    return {name: number for name, number in numbers.items() if number}


def _cpus(requests: Mapping[str, str]) -> float:
    """Return the processors of a request such as ``96`` or ``1500m``."""
    text = str(requests.get("cpu", "0"))
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", text)
    if found is None:
        raise ValueError(
            f"a pod requests {shown(text)} processors; expected a form such as 96 or 1500m"
        )
    return float(found[1]) / (1000 if found[2] else 1)


def _second(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())
