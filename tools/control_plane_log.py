"""What EKS's control plane of a cluster said, as it ships it to CloudWatch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from botocore.exceptions import ClientError

from config.eks_cluster import EksCluster
from config.resource_names import control_plane_log_group
from tools.aws_session import is_absent
from tools.lifecycle_log import LATE_MS, Event, read_events

AUDIT = "kube-apiserver-audit-"
"""Begins names of streams with a line for each request, megabytes a minute: for CloudWatch's own queries."""
DEFAULT_SINCE_MS = 30 * 60_000
SHIPPED_WITHIN_MS = 3600_000
"""How late the service may be with a stream's time of the last event (``lastEventTimestamp``)."""


def read_control_plane(logs: Any, cluster: EksCluster, *, since_ms: int) -> list[Event]:
    """Events of all parts but the audit log since a time, in the order of their times.

    Raises:
        ValueError: if the log group is not there, or the file has no logs of the control plane.
    """
    kinds = [kind for kind in cluster.kubernetes.control_plane_logs if kind != "audit"]
    if not kinds:
        raise ValueError(
            f"kubernetes.control_plane_logs: got {cluster.kubernetes.control_plane_logs}; the control plane "
            "logs nothing to show; add api, authenticator, controllerManager or scheduler, and deploy"
        )
    group = control_plane_log_group(cluster)
    try:
        events = list(_events(logs, group, since_ms))
    except ClientError as error:
        if not is_absent(error):
            raise
        raise ValueError(f"there is no log group {group}; make deploy makes it with the cluster") from None
    return sorted(events, key=lambda event: event.time_ms)


def _events(logs: Any, group: str, since_ms: int) -> Iterator[Event]:
    # The newest first, so that a year's streams are not read for the last half hour.
    names: list[str] = []
    for page in logs.get_paginator("describe_log_streams").paginate(
        logGroupName=group, orderBy="LastEventTime", descending=True
    ):
        found = page["logStreams"]
        names += [stream["logStreamName"] for stream in found if _is_wanted(stream, since_ms)]
        if found and not _is_recent(found[-1], since_ms):
            break
    yield from read_events(logs, group, names, since_ms=since_ms)


def _is_wanted(stream: dict[str, Any], since_ms: int) -> bool:
    return not stream["logStreamName"].startswith(AUDIT) and _is_recent(stream, since_ms)


def _is_recent(stream: dict[str, Any], since_ms: int) -> bool:
    last = max(stream.get("lastEventTimestamp", 0), stream.get("creationTime", 0))
    return bool(last >= since_ms - SHIPPED_WITHIN_MS)


def part(event: Event) -> str:
    """The part of the control plane that said it: its stream's name without the id of its instance."""
    return event.stream.rpartition("-")[0]


def follow_control_plane(
    logs: Any,
    cluster: EksCluster,
    shown: list[Event],
    tell: Callable[[Event], None],
    *,
    now_ms: int,
    wait: float,
) -> None:
    """Tell what comes, until Ctrl-C."""
    seen = {event.id for event in shown}
    latest = max((event.time_ms for event in shown), default=now_ms)
    while True:
        time.sleep(wait)
        for event in read_control_plane(logs, cluster, since_ms=latest - LATE_MS):
            if event.id not in seen:
                seen.add(event.id)
                latest = max(latest, event.time_ms)
                tell(event)
