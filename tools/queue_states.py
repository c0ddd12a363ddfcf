"""Why Kueue lets a job wait, in its own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.kubectl import Kubectl, Refused
from workloads.esm2.launch.pod_job import QUEUE_LABEL

WORKLOAD_KIND = "workloads.kueue.x-k8s.io"


def queue_problems(kubectl: Kubectl, job: Mapping[str, Any]) -> list[str]:
    """One line each; none if the job is in no queue, has its quota, or Kueue may not be asked."""
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
        if any(owner["uid"] == metadata["uid"] for owner in workload["metadata"].get("ownerReferences", []))
        for condition in workload.get("status", {}).get("conditions", [])
        if (condition["type"], condition["status"]) == ("QuotaReserved", "False") and condition.get("message")
    ]
