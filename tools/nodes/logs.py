"""Print the newest setup log of nodes from CloudWatch, including nodes that no longer exist.

``python -m tools.nodes.logs [NODE]``: a group, ``<group>-<n>``, a host name, or an instance id, which may be
gone. The default is all present nodes, and those whose last line is less than a day older than the newest.
On EKS, ``control-plane`` shows the logs of its API server, authenticator, controllers and scheduler.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from config.eks_cluster import EksCluster
from config.reading.loader import load_cluster
from config.resource_names import ResourceNames
from tools.aws_session import aws_client, if_present, open_session
from tools.command_line import cluster_parser, run_command
from tools.nodes.cluster_nodes import ClusterNodes, nodes_meant, read_cluster_nodes
from tools.nodes.lifecycle_log import (
    ERROR,
    LATE_MS,
    Event,
    NodeStream,
    find_log_group,
    list_streams,
    newest_run,
    outcome,
    read_events,
)

AUDIT = "kube-apiserver-audit-"
"""Begins names of streams with a line for each request, megabytes a minute: for CloudWatch's own queries."""
DEFAULT_SINCE_MS = 30 * 60_000
SHIPPED_WITHIN_MS = 3600_000
"""Delay with which the service may update a stream's time of the last event (``lastEventTimestamp``)."""
POLL_SECONDS = 5.0
CONTROL_PLANE = "control-plane"
"""In place of a node: what EKS's parts said."""
DAY_MS = 24 * 3600 * 1000
UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": DAY_MS}
RED = "\x1b[1;31m"
PLAIN = "\x1b[0m"


def main() -> int:
    options = _options()
    cluster = load_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    is_group = any(group.name == CONTROL_PLANE for group in cluster.instance_groups)
    if options.node == CONTROL_PLANE and isinstance(cluster, EksCluster) and not is_group:
        _show_control_plane(aws_client(session, "logs"), cluster, options)
        return 0
    read_nodes = partial(_read_nodes, aws_client(session, "sagemaker"), cluster.name)
    nodes = read_nodes()
    logs = aws_client(session, "logs")
    log_group = find_log_group(logs, cluster, nodes.cluster_id if nodes else None)
    streams = choose_streams(list_streams(logs, log_group), nodes, options.node, since_ms=options.since)
    printer = Printer(names_of(nodes), colours=sys.stdout.isatty())
    since_ms = _now_ms() - options.since if options.since else 0
    found = list(read_events(logs, log_group, [stream.name for stream in streams], since_ms=since_ms))
    for stream in streams:
        events = [event for event in found if event.stream == stream.name]
        printer.show(stream, events if options.since else newest_run(events))
    if options.follow:
        _follow_nodes(logs, log_group, read_nodes, options.node, printer, found)
    return 0


def _show_control_plane(logs: Any, cluster: EksCluster, options: argparse.Namespace) -> None:
    now_ms = _now_ms()

    def tell(event: Event) -> None:
        # The part of the control plane: its stream's name without the id of its instance.
        print(f"{event.stream.rpartition('-')[0]}: {event.text}", flush=True)

    read = partial(read_control_plane, logs, cluster)
    events = read(now_ms - (options.since or DEFAULT_SINCE_MS))
    for event in events:
        tell(event)
    if not events:
        print('the control plane said nothing in that time; ARGS="--since 1d" looks further back')
    if options.follow:
        _follow(read, tell, events, now_ms=now_ms)


def _options() -> argparse.Namespace:
    parser = cluster_parser("Show the log of node setup.")
    parser.add_argument(
        "node", nargs="?", help=f"group, node, host name or instance id (all); on EKS also {CONTROL_PLANE}"
    )
    parser.add_argument("--follow", action="store_true", help="show new lines until Ctrl-C")
    parser.add_argument(
        "--since",
        type=_milliseconds,
        metavar="TIME",
        help="all since then, such as 30m, 2h or 1d ago, instead of each node's newest run or 30m",
    )
    return parser.parse_args()


def _milliseconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)([mhd])", text)
    if not found:
        raise argparse.ArgumentTypeError(f"got {text!r}; a number and m, h or d, such as 30m, 2h, 1d")
    return int(found[1]) * UNITS_MS[found[2]]


def _now_ms() -> int:
    return int(time.time() * 1000)


def _read_nodes(sagemaker: Any, cluster_name: str) -> ClusterNodes | None:
    """None for a cluster that is gone, whose logs outlive it."""
    try:
        return read_cluster_nodes(sagemaker, cluster_name)
    except ValueError as error:
        print(f"note: {error}; these are the logs of the last one of that name", file=sys.stderr)
        return None


def names_of(nodes: ClusterNodes | None) -> dict[str, str]:
    """Names by instance id."""
    return {node.instance_id: node.name for node in nodes.nodes} if nodes else {}


def choose_streams(
    streams: Sequence[NodeStream], nodes: ClusterNodes | None, wanted: str | None, *, since_ms: int | None
) -> list[NodeStream]:
    """Streams of the nodes that are meant, the one that spoke last at the end.

    Without a name: of nodes that are there, and of those that are gone but spoke within a day (``since_ms``)
    of the last line; a node whose setup fails is replaced, and users look for its log.

    Raises:
        ValueError: if a name means none.
    """
    if wanted is None:
        newest = max((stream.last_event_ms for stream in streams), default=0)
        oldest = newest - (since_ms or DAY_MS)
        chosen = [s for s in streams if s.last_event_ms >= oldest or s.instance_id in names_of(nodes)]
    else:
        chosen = [stream for stream in streams if _is_meant(stream, nodes, wanted)]
        if not chosen and nodes and nodes_meant(nodes, wanted):
            raise ValueError(f"{wanted} has said nothing yet; what a node says arrives a minute or two later")
        if not chosen:
            names = names_of(nodes)
            there = ", ".join(
                names.get(s.instance_id, f"{s.instance_id} of {s.group}, gone") for s in streams
            )
            raise ValueError(f"no node {wanted}; there are logs of {there or 'none'}")
    return sorted(chosen, key=lambda stream: stream.last_event_ms)


def _is_meant(stream: NodeStream, nodes: ClusterNodes | None, wanted: str) -> bool:
    listed = nodes_meant(nodes, wanted) if nodes else ()
    return wanted in (stream.instance_id, stream.group) or stream.instance_id in {
        node.instance_id for node in listed
    }


class Printer:
    def __init__(self, names: dict[str, str], *, colours: bool) -> None:
        self.names = names
        self._colours = colours

    def name(self, stream: NodeStream) -> str:
        return self.names.get(stream.instance_id) or f"{stream.group} {stream.instance_id} (gone)"

    def show(self, stream: NodeStream, events: Sequence[Event]) -> None:
        name = self.name(stream)
        print(f"=== {name}" if stream.instance_id in name else f"=== {name} {stream.instance_id}")
        for event in events:
            print(self._coloured(event.text))
        print(f"=== {name}: {self._coloured(outcome(events))}\n", flush=True)

    def tell(self, stream: NodeStream, event: Event) -> None:
        print(f"{self.name(stream)}: {self._coloured(event.text)}", flush=True)

    def _coloured(self, text: str) -> str:
        return f"{RED}{text}{PLAIN}" if self._colours and ERROR in text else text


def _follow_nodes(
    logs: Any,
    log_group: str,
    read_nodes: Callable[[], ClusterNodes | None],
    wanted: str | None,
    printer: Printer,
    shown: Sequence[Event],
) -> None:
    """Follow nodes, including those whose first line appears meanwhile."""
    nodes = read_nodes()
    streams = dict[str, NodeStream]()

    def read(since_ms: int) -> Iterator[Event]:
        nonlocal nodes, streams
        known = streams
        streams = {stream.name: stream for stream in list_streams(logs, log_group)}
        if not streams.keys() <= known.keys():
            nodes = read_nodes()
            printer.names = names_of(nodes)
        meant = [s.name for s in streams.values() if wanted is None or _is_meant(s, nodes, wanted)]
        return read_events(logs, log_group, meant, since_ms=since_ms)

    _follow(read, lambda event: printer.tell(streams[event.stream], event), shown, now_ms=_now_ms())


def _follow(
    read: Callable[[int], Iterable[Event]],
    tell: Callable[[Event], None],
    shown: Sequence[Event],
    *,
    now_ms: int,
) -> None:
    """Tell each event that is not shown yet and that ``read`` finds since a time, until Ctrl-C."""
    seen = {event.id for event in shown}
    latest = max((event.time_ms for event in shown), default=now_ms)
    while True:
        time.sleep(POLL_SECONDS)
        for event in read(latest - LATE_MS):
            if event.id not in seen:
                seen.add(event.id)
                latest = max(latest, event.time_ms)
                tell(event)


def read_control_plane(logs: Any, cluster: EksCluster, since_ms: int) -> list[Event]:
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
    group = ResourceNames(cluster).control_plane_log_group
    events = if_present(lambda: list(_events(logs, group, since_ms)))
    if events is None:
        raise ValueError(f"there is no log group {group}; make deploy makes it with the cluster")
    return sorted(events, key=lambda event: event.time_ms)


def _events(logs: Any, group: str, since_ms: int) -> Iterator[Event]:
    # The newest first, so that a year's streams are not read for the last half hour.
    names: list[str] = []
    for page in logs.get_paginator("describe_log_streams").paginate(
        logGroupName=group, orderBy="LastEventTime", descending=True
    ):
        found = page["logStreams"]
        recent = [stream["logStreamName"] for stream in found if _is_recent(stream, since_ms)]
        names += [name for name in recent if not name.startswith(AUDIT)]
        if found and not _is_recent(found[-1], since_ms):
            break
    yield from read_events(logs, group, names, since_ms=since_ms)


def _is_recent(stream: dict[str, Any], since_ms: int) -> bool:
    last = max(stream.get("lastEventTimestamp", 0), stream.get("creationTime", 0))
    return bool(last >= since_ms - SHIPPED_WITHIN_MS)


if __name__ == "__main__":
    run_command(main)
