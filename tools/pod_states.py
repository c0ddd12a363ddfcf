"""What holds a pod up, or ended its containers, in Kubernetes' words and their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

IN_ORDER = ("ContainerCreating", "PodInitializing")
"""Reasons to wait that pass."""
STARTS_AGAIN = "CrashLoopBackOff"
"""Says less than what the container said when it ended."""


def pod_problems(pod: Mapping[str, Any]) -> list[str]:
    """One line each; none if all is in order."""
    status = pod.get("status", {})
    found = [
        f"no node: {condition['message']}"
        for condition in status.get("conditions", [])
        if condition["type"] == "PodScheduled" and condition["status"] == "False" and condition.get("message")
    ]
    for container in _containers(status):
        found += waiting_problems(container)
        found += _endings(container)
    return found


def has_begun(pod: Mapping[str, Any]) -> bool:
    """Whether one of its containers has a log, which those before the main one may have, too."""
    status = pod.get("status", {})
    states = [{**found.get("lastState", {}), **found.get("state", {})} for found in _containers(status)]
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
    """What it said last when it failed, now or the last time."""
    for state in ("state", "lastState"):
        ended = container.get(state, {}).get("terminated")
        if ended and ended["exitCode"]:
            said = (ended.get("message", "").strip().splitlines() or [ended.get("reason", "")])[-1]
            times = container.get("restartCount", 0)
            again = f", started again {times} time(s)" if times else ""
            return [f"{container['name']} ended with {ended['exitCode']}{again}: {said}"]
    return []
