"""Setup logs of nodes, which HyperPod sends to CloudWatch: one stream per node, which outlives it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from config.cluster import Cluster
from config.resource_names import ResourceNames
from tools.aws_session import all_items, if_present

PREFIX = "LifecycleConfig/"
STREAMS_PER_CALL = 100
"""Limit of FilterLogEvents."""
LATE_MS = 60_000
"""Delay with which an event may arrive after others; the search repeats for this time."""
# As lifecycle/slurm and lifecycle/eks put it.
BEGINS = re.compile(r" bootstrap: | on_create: start ")
DONE = re.compile(r" (?:bootstrap: (?=done: \d+ steps)|on_create: (?=done$))")
RUN_ENDS = re.compile(rf"{DONE.pattern}|^on_init_complete: failed| on_create: failed;")
ERROR = "ERROR: "
OF_OTHER_NODES = " apply: "
"""In lines of the controller's log by which apply_to_cluster.py tells of all nodes."""


@dataclass(frozen=True)
class NodeStream:
    name: str
    group: str
    instance_id: str
    last_event_ms: int
    """Since 1970. The service may be an hour late with it; never before the stream's creation."""


@dataclass(frozen=True)
class Event:
    stream: str
    id: str
    time_ms: int
    text: str


def find_log_group(logs: Any, cluster: Cluster, cluster_id: str | None) -> str:
    """HyperPod's log group of a cluster; of one that is gone, the last one of that name.

    Raises:
        ValueError: if there is none yet.
    """
    prefix = f"/aws/sagemaker/Clusters/{cluster.name}/"
    found = all_items(logs, "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
    groups = {group["logGroupName"]: group["creationTime"] for group in found}
    # What CloudWatch's agent sends is another group's.
    groups.pop(ResourceNames(cluster).node_log_group, None)
    if cluster_id is not None:
        groups = {name: time for name, time in groups.items() if name == prefix + cluster_id}
    if not groups:
        raise ValueError(
            f"there is no log group {prefix}{cluster_id or '<id>'} yet; it comes with the first node whose "
            "setup prints something, some minutes after the node: see `make connect ARGS=--list` and "
            f"`aws sagemaker describe-cluster --cluster-name {cluster.name}`"
        )
    return max(groups, key=lambda name: groups[name])


def list_streams(logs: Any, log_group: str) -> list[NodeStream]:
    """Streams of all nodes that there have been, by their names."""
    chosen = {"logGroupName": log_group, "logStreamNamePrefix": PREFIX}
    streams = []
    for stream in if_present(all_items, logs, "describe_log_streams", "logStreams", **chosen) or []:
        name = stream["logStreamName"]
        group, _, instance_id = name.removeprefix(PREFIX).rpartition("/")
        last_event_ms = max(stream.get("creationTime", 0), stream.get("lastEventTimestamp", 0))
        streams.append(NodeStream(name, group, instance_id, last_event_ms))
    return streams


def read_events(logs: Any, log_group: str, streams: Sequence[str], *, since_ms: int) -> Iterator[Event]:
    """Events of these streams from a time on, in the order of their times within each hundred streams."""
    for start in range(0, len(streams), STREAMS_PER_CALL):
        pages = logs.get_paginator("filter_log_events").paginate(
            logGroupName=log_group,
            logStreamNames=streams[start : start + STREAMS_PER_CALL],
            startTime=since_ms,
        )
        for page in pages:
            for event in page["events"]:
                text = event["message"].rstrip("\n")
                yield Event(event["logStreamName"], event["eventId"], event["timestamp"], text)


def newest_run(events: Sequence[Event]) -> list[Event]:
    """A node's events from where its last run began; the first run has what the image said before it."""
    start = 0
    ended = False
    for index, event in enumerate(events):
        if ended and BEGINS.search(event.text):
            start = index
            ended = False
        ended = ended or bool(RUN_ENDS.search(event.text))
    return list(events[start:])


def outcome(events: Sequence[Event]) -> str:
    """Return the result of the last run in a line: its end, or the last error, possibly of the image."""
    failed = ""
    for event in reversed(events):
        if OF_OTHER_NODES in event.text:
            continue
        if ERROR in event.text:
            return event.text[event.text.index(ERROR) :]
        if done := DONE.search(event.text):
            return failed or event.text[done.end() :]
        failed = event.text if RUN_ENDS.search(event.text) else failed
    return failed or "not at its end yet"
