"""Setup logs of nodes in CloudWatch, where each node has a stream that outlives it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from config.cluster import Cluster
from config.resource_names import ResourceNames
from tools.aws_session import all_items, if_present

PREFIX = "LifecycleConfig/"
"""Prefix of the streams' names, before group and instance id."""
STREAMS_PER_CALL = 100
"""Most streams that FilterLogEvents takes."""
LATE_MS = 60_000
"""Longest delay of an event; events of this time are read again."""
# Texts of lifecycle/slurm and lifecycle/eks.
BEGINS = re.compile(r" bootstrap: | on_create: start ")
"""Line at the begin of a run."""
DONE = re.compile(r" (?:bootstrap: (?=done: \d+ steps)|on_create: (?=done$))")
"""Line at the end of a successful run."""
RUN_ENDS = re.compile(rf"{DONE.pattern}|^on_init_complete: failed| on_create: failed;")
"""Line at the end of a run."""
ERROR = "ERROR: "
OF_OTHER_NODES = " apply: "
"""Mark of lines in the controller's log in which apply_to_cluster.py reports on all nodes."""


@dataclass(frozen=True)
class NodeStream:
    name: str
    group: str
    instance_id: str
    last_event_ms: int
    """Time of the last event in ms since 1970, or of the stream's creation if that is later. The service may
    update it an hour late."""


class State(StrEnum):
    """Result of a node's last run. The values stand in counts of nodes."""

    DONE = "done"
    FAILED = "failed"
    UNFINISHED = "not at their end yet"
    SILENT = "without a line in that time"


@dataclass(frozen=True)
class Outcome:
    state: State
    text: str
    """The result in a line: the end of the run, or the last error."""


@dataclass(frozen=True)
class Event:
    stream: str
    id: str
    time_ms: int
    text: str


def find_log_group(logs: Any, cluster: Cluster, cluster_id: str | None) -> str:
    """Return HyperPod's log group of a cluster.

    Args:
        logs: client of CloudWatch Logs.
        cluster: cluster file.
        cluster_id: id of the existing cluster; None for the last deleted cluster of that name.

    Raises:
        ValueError: if the group does not exist yet.
    """
    prefix = f"/aws/sagemaker/Clusters/{cluster.name}/"
    found = all_items(logs, "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
    groups = {group["logGroupName"]: group["creationTime"] for group in found}
    # CloudWatch's agent writes to another group with the same prefix.
    groups.pop(ResourceNames(cluster).node_log_group, None)
    if cluster_id is not None:
        groups = {name: time for name, time in groups.items() if name == prefix + cluster_id}
    if not groups:
        raise ValueError(
            f"there is no log group {prefix}{cluster_id or '<id>'} yet; HyperPod creates it some minutes "
            "after the first node starts its setup: see `make connect ARGS=--list` and "
            f"`aws sagemaker describe-cluster --cluster-name {cluster.name}`"
        )
    return max(groups, key=lambda name: groups[name])


def list_streams(logs: Any, log_group: str) -> list[NodeStream]:
    """Return the streams of all present and former nodes."""
    found = if_present(
        all_items,
        logs,
        "describe_log_streams",
        "logStreams",
        logGroupName=log_group,
        logStreamNamePrefix=PREFIX,
    )
    streams = []
    for stream in found or []:
        last_event_ms = max(stream.get("creationTime", 0), stream.get("lastEventTimestamp", 0))
        streams.append(node_stream(stream["logStreamName"], last_event_ms))
    return streams


def node_stream(name: str, last_event_ms: int) -> NodeStream:
    group, _, instance_id = name.removeprefix(PREFIX).rpartition("/")
    return NodeStream(name, group, instance_id, last_event_ms)


def read_events(
    logs: Any, log_group: str, streams: Sequence[str], *, since_ms: int
) -> Iterator[Event]:
    """Yield the events of these streams since a time, in the order of time within each hundred streams."""
    for start in range(0, len(streams), STREAMS_PER_CALL):
        names = streams[start : start + STREAMS_PER_CALL]
        yield from _filtered(logs, log_group, since_ms, logStreamNames=names)


def read_new_events(logs: Any, log_group: str, group: str, *, since_ms: int) -> Iterator[Event]:
    """Yield the events of all nodes since a time without a list of their streams.

    Args:
        logs: client of CloudWatch Logs.
        log_group: log group of the cluster.
        group: instance group of the nodes; empty for all groups.
        since_ms: time of the oldest events.
    """
    prefix = f"{PREFIX}{group}/" if group else PREFIX
    return _filtered(logs, log_group, since_ms, logStreamNamePrefix=prefix)


def _filtered(logs: Any, log_group: str, since_ms: int, **streams: Any) -> Iterator[Event]:
    pages = logs.get_paginator("filter_log_events").paginate(
        logGroupName=log_group, startTime=since_ms, **streams
    )
    for page in pages:
        for event in page["events"]:
            text = event["message"].rstrip("\n")
            yield Event(event["logStreamName"], event["eventId"], event["timestamp"], text)


def newest_run(events: Sequence[Event]) -> list[Event]:
    """Return the events of a node's last run; for the first run, with the image's output before it."""
    start = 0
    ended = False
    for index, event in enumerate(events):
        if ended and BEGINS.search(event.text):
            start = index
            ended = False
        ended = ended or bool(RUN_ENDS.search(event.text))
    return list(events[start:])


def outcome(events: Sequence[Event]) -> Outcome:
    """Return the result of the last run: its end, or the last error, also of the image."""
    if not events:
        return Outcome(State.SILENT, "no line in that time")
    failed = ""
    for event in reversed(events):
        if OF_OTHER_NODES in event.text:
            continue
        if ERROR in event.text:
            return Outcome(State.FAILED, event.text[event.text.index(ERROR) :])
        if done := DONE.search(event.text):
            if failed:
                return Outcome(State.FAILED, failed)
            return Outcome(State.DONE, event.text[done.end() :])
        failed = event.text if RUN_ENDS.search(event.text) else failed
    if failed:
        return Outcome(State.FAILED, failed)
    return Outcome(State.UNFINISHED, "not at its end yet")
