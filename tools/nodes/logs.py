"""Print the newest setup log of nodes from CloudWatch, including nodes that no longer exist.

``python -m tools.nodes.logs [NODE]``: a group, ``<group>-<n>``, a host name, or an instance id, which may be
gone. The default is all present nodes, and those whose last line is less than a day older than the newest.
Above 20 nodes, it prints counts by result and the first failed nodes; ``--all`` prints a line per node.
On EKS, ``control-plane`` shows the logs of its API server, authenticator, controllers and scheduler.
"""

import argparse
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from config.eks_cluster import EksCluster
from config.reading.loader import load_cluster
from config.resource_names import ResourceNames
from tools.aws_session import aws_client, if_present, open_session
from tools.command_line import cluster_parser, run_command
from tools.json_output import add_json_option, is_recording, publish, publish_lines
from tools.nodes.cluster_nodes import ClusterNodes, nodes_meant, read_cluster_nodes
from tools.nodes.lifecycle_log import (
    ERROR,
    LATE_MS,
    Event,
    NodeStream,
    Outcome,
    State,
    find_log_group,
    list_streams,
    newest_run,
    node_stream,
    outcome,
    read_events,
    read_new_events,
)

AUDIT = "kube-apiserver-audit-"
"""Prefix of the audit log's streams. They have a line per request, megabytes per minute, and are for
CloudWatch's own queries."""
DEFAULT_SINCE_MS = 30 * 60_000
"""Age of the oldest events of the control plane that are shown by default."""
SHIPPED_WITHIN_MS = 3600_000
"""Delay with which the service may update a stream's time of the last event (``lastEventTimestamp``)."""
POLL_SECONDS = 5.0
MOST_WHOLE_LOGS = 20
"""Most nodes whose whole logs are printed; of more nodes, the results."""
MOST_FAILED = 20
"""Most failed nodes that the summary of many nodes lists."""
MOST_NAMES = 10
"""Most nodes that an error message lists."""
CONTROL_PLANE = "control-plane"
"""Argument for the logs of EKS's control plane, in place of a node."""
DAY_MS = 24 * 3600 * 1000
UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": DAY_MS}
# Control sequences of a terminal.
RED = "\x1b[1;31m"
PLAIN = "\x1b[0m"


def main() -> int:
    options = _options()
    if options.follow and is_recording():
        raise ValueError("--follow: with --json the document comes at the end; give one of the two")
    cluster = load_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    is_group = any(group.name == CONTROL_PLANE for group in cluster.instance_groups)
    if options.node == CONTROL_PLANE and isinstance(cluster, EksCluster) and not is_group:
        _show_control_plane(aws_client(session, "logs"), cluster, options)
        publish_lines("lines")
        return 0
    read_nodes = partial(_read_nodes, aws_client(session, "sagemaker"), cluster.name)
    nodes = read_nodes()
    logs = aws_client(session, "logs")
    log_group = find_log_group(logs, cluster, nodes.cluster_id if nodes else None)
    streams = choose_streams(
        list_streams(logs, log_group), nodes, options.node, since_ms=options.since
    )
    printer = Printer(names_of(nodes), colours=sys.stdout.isatty())
    since_ms = _now_ms() - options.since if options.since else 0
    found = list(
        read_events(logs, log_group, [stream.name for stream in streams], since_ms=since_ms)
    )
    events_of: dict[str, list[Event]] = defaultdict(list)
    for event in found:
        events_of[event.stream].append(event)
    outcomes = [(stream, outcome(newest_run(events_of[stream.name]))) for stream in streams]
    publish(
        nodes=[
            {
                "name": printer.names.get(stream.instance_id),
                "group": stream.group,
                "instance_id": stream.instance_id,
                "state": result.state.name.lower(),
                "result": result.text,
            }
            for stream, result in outcomes
        ]
    )
    if options.all or len(streams) > MOST_WHOLE_LOGS:
        printer.summarize(outcomes, all_nodes=options.all)
    else:
        for stream in streams:
            events = events_of[stream.name]
            printer.show(stream, events if options.since else newest_run(events))
        publish_lines("lines")
    if options.follow:
        _follow_nodes(logs, log_group, read_nodes, options.node, printer, found)
    return 0


def _show_control_plane(logs: Any, cluster: EksCluster, options: argparse.Namespace) -> None:
    now_ms = _now_ms()

    def show(event: Event) -> None:
        # The stream's name is that of the control plane's part and the id of its instance.
        part = event.stream.rpartition("-")[0]
        print(f"{part}: {event.text}", flush=True)

    read = partial(read_control_plane, logs, cluster)
    events = read(now_ms - (options.since or DEFAULT_SINCE_MS))
    for event in events:
        show(event)
    if not events:
        print('the control plane logged nothing in that time; ARGS="--since 1d" looks further back')
    if options.follow:
        _follow(read, show, events, now_ms=now_ms)


def _options() -> argparse.Namespace:
    parser = cluster_parser("Show the log of node setup.")
    parser.add_argument(
        "node",
        nargs="?",
        help=f"group, node, host name or instance id (default: all); on EKS also {CONTROL_PLANE}",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"a line per node (default: whole logs; above {MOST_WHOLE_LOGS} nodes, counts and the first "
        "failed nodes)",
    )
    parser.add_argument("--follow", action="store_true", help="show new lines until Ctrl-C")
    parser.add_argument(
        "--since",
        type=_milliseconds,
        metavar="TIME",
        help="age of the oldest events to show, such as 30m, 2h or 1d (default: each node's newest run; 30m "
        f"for {CONTROL_PLANE})",
    )
    add_json_option(parser)
    return parser.parse_args()


def _milliseconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)([mhd])", text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"got {text!r}; a number and m, h or d, such as 30m, 2h, 1d"
        )
    return int(found[1]) * UNITS_MS[found[2]]


def _now_ms() -> int:
    return int(time.time() * 1000)


def _read_nodes(sagemaker: Any, cluster_name: str) -> ClusterNodes | None:
    """Return the nodes; None for a cluster that no longer exists, because its logs outlive it."""
    try:
        return read_cluster_nodes(sagemaker, cluster_name)
    except ValueError as error:
        print(
            f"note: {error}; these are the logs of the last cluster of that name", file=sys.stderr
        )
        return None


def names_of(nodes: ClusterNodes | None) -> dict[str, str]:
    """Return the names of existing nodes by instance id."""
    return {node.instance_id: node.name for node in nodes.nodes} if nodes else {}


def choose_streams(
    streams: Sequence[NodeStream],
    nodes: ClusterNodes | None,
    wanted: str | None,
    *,
    since_ms: int | None,
) -> list[NodeStream]:
    """Return the log streams of the chosen nodes, the most recent last.

    The default are existing nodes, and former nodes with an event within a day (``since_ms``) of the newest
    event. A node is replaced if its setup fails, and users look for its log.

    Args:
        streams: all streams of the log group.
        nodes: existing nodes; None if the cluster no longer exists.
        wanted: name, host name, instance id or group of nodes; None for the default.
        since_ms: age of the oldest events to show, if given.

    Raises:
        ValueError: if ``wanted`` has no stream.
    """
    names = names_of(nodes)
    if wanted is None:
        newest = max((stream.last_event_ms for stream in streams), default=0)
        oldest = newest - (since_ms or DAY_MS)
        chosen = [
            stream
            for stream in streams
            if stream.last_event_ms >= oldest or stream.instance_id in names
        ]
    else:
        meant = _ids_meant(nodes, wanted)
        chosen = [stream for stream in streams if _is_meant(stream, meant, wanted)]
        if not chosen and meant:
            raise ValueError(f"{wanted} has logged nothing yet; events arrive a minute or two late")
        if not chosen:
            described = [
                names.get(stream.instance_id, f"{stream.instance_id} of {stream.group}, gone")
                for stream in streams[:MOST_NAMES]
            ]
            if len(streams) > MOST_NAMES:
                described.append(f"and {len(streams) - MOST_NAMES} more (ARGS=--all lists them)")
            raise ValueError(
                f"no node {wanted}; there are logs of {', '.join(described) or 'none'}"
            )
    return sorted(chosen, key=lambda stream: stream.last_event_ms)


def _ids_meant(nodes: ClusterNodes | None, wanted: str | None) -> frozenset[str]:
    """Return the instance ids of the existing nodes that are wanted; none if all nodes are."""
    if nodes is None or wanted is None:
        return frozenset()
    return frozenset(node.instance_id for node in nodes_meant(nodes, wanted))


def _is_meant(stream: NodeStream, meant: frozenset[str], wanted: str) -> bool:
    """Return whether a stream belongs to a wanted node, which may no longer exist.

    Args:
        stream: log stream.
        meant: result of ``_ids_meant``, which is the same for all streams.
        wanted: name, host name, instance id or group of nodes.
    """
    return wanted in (stream.instance_id, stream.group) or stream.instance_id in meant


class Printer:
    """Printer of events under the names of their nodes."""

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
        print(f"=== {name}: {self._coloured(outcome(newest_run(events)).text)}\n", flush=True)

    def summarize(self, outcomes: Sequence[tuple[NodeStream, Outcome]], *, all_nodes: bool) -> None:
        """Print the number of nodes by result, and a line for each node or for the first failed ones."""
        numbers = Counter(result.state for _, result in outcomes)
        counts = ", ".join(f"{numbers[state]} {state}" for state in State if numbers[state])
        print(f"{len(outcomes)} node(s): {counts}" if outcomes else "no nodes")
        failed = [item for item in outcomes if item[1].state is State.FAILED]
        for stream, result in outcomes if all_nodes else failed[:MOST_FAILED]:
            print(f"  {self.name(stream)}: {self._coloured(result.text)}")
        if not all_nodes and len(failed) > MOST_FAILED:
            print(f"  and {len(failed) - MOST_FAILED} more failed nodes")
        print(
            "the whole log of a node: make logs NODE=<node>; a line per node: make logs ARGS=--all",
            flush=True,
        )

    def show_event(self, stream: NodeStream, event: Event) -> None:
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
    """Print new events of nodes, including nodes that start later.

    Args:
        logs: client of CloudWatch Logs.
        log_group: log group of the cluster.
        read_nodes: function that returns the existing nodes.
        wanted: name, host name, instance id or group of nodes; None for all nodes.
        printer: printer, to which the names of new nodes are added.
        shown: events that are printed already.
    """
    nodes = read_nodes()
    unknown: set[str] = set()
    """Instances that are not among the nodes, although they were read again for them."""
    meant = _ids_meant(nodes, wanted)
    groups = {node.group for node in nodes.nodes if node.instance_id in meant} if nodes else set()
    [group] = groups if len(groups) == 1 else [""]

    def read(since_ms: int) -> Iterator[Event]:
        nonlocal meant
        for event in read_new_events(logs, log_group, group, since_ms=since_ms):
            stream = node_stream(event.stream, event.time_ms)
            if stream.instance_id not in printer.names and stream.instance_id not in unknown:
                present = read_nodes()
                meant = _ids_meant(present, wanted)
                printer.names = names_of(present)
                if stream.instance_id not in printer.names:
                    unknown.add(stream.instance_id)
            if wanted is None or _is_meant(stream, meant, wanted):
                yield event

    def show(event: Event) -> None:
        printer.show_event(node_stream(event.stream, event.time_ms), event)

    _follow(read, show, shown, now_ms=_now_ms())


def _follow(
    read: Callable[[int], Iterable[Event]],
    show: Callable[[Event], None],
    shown: Sequence[Event],
    *,
    now_ms: int,
) -> None:
    """Show new events until Ctrl-C.

    Args:
        read: function that returns the events since a time.
        show: function that prints an event.
        shown: events that are printed already.
        now_ms: time of the first request, from which events are shown if ``shown`` is empty.
    """
    seen = {event.id for event in shown}
    latest = max((event.time_ms for event in shown), default=now_ms)
    while True:
        time.sleep(POLL_SECONDS)
        for event in read(latest - LATE_MS):
            if event.id not in seen:
                seen.add(event.id)
                latest = max(latest, event.time_ms)
                show(event)


def read_control_plane(logs: Any, cluster: EksCluster, since_ms: int) -> list[Event]:
    """Return the events of all parts except the audit log since a time, in the order of time.

    Raises:
        ValueError: if the log group does not exist, or the file turns these logs off.
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
        remedy = "make deploy creates it with the cluster"
        if cluster.kubernetes.existing:
            remedy = "turn on control-plane logging in that EKS cluster"
        raise ValueError(f"there is no log group {group}; {remedy}")
    return sorted(events, key=lambda event: event.time_ms)


def _events(logs: Any, group: str, since_ms: int) -> Iterator[Event]:
    # The newest streams come first, so that the search can end at the first page with old ones.
    pages = logs.get_paginator("describe_log_streams").paginate(
        logGroupName=group, orderBy="LastEventTime", descending=True
    )
    names: list[str] = []
    for page in pages:
        streams = page["logStreams"]
        for stream in streams:
            if _is_recent(stream, since_ms) and not stream["logStreamName"].startswith(AUDIT):
                names.append(stream["logStreamName"])
        if streams and not _is_recent(streams[-1], since_ms):
            break
    yield from read_events(logs, group, names, since_ms=since_ms)


def _is_recent(stream: dict[str, Any], since_ms: int) -> bool:
    """Return whether a stream may have events since a time."""
    last = max(stream.get("lastEventTimestamp", 0), stream.get("creationTime", 0))
    return bool(last >= since_ms - SHIPPED_WITHIN_MS)


if __name__ == "__main__":
    run_command(main)
