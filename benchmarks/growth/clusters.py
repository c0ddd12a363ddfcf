"""Growth of clusters: templates, addresses, programs on nodes, and what commands print and ask AWS for.

Nothing of it runs in AWS. Answers of AWS and Kubernetes are stand-ins.
"""

import contextlib
import io
import json
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from benchmarks.growth.processes import run_target
from benchmarks.growth.row import CPU_SECONDS, GPUS, NODES, TEAMS, USERS, Costs, Row
from config.address_demand import RESERVED_ADDRESSES, address_takers
from config.cluster import zone_ids
from config.rules import violations
from config.slurm_cluster import SlurmCluster
from seqlm.launch.hang_channel import Event, HangChannel, HangServer
from seqlm.launch.pod_job import RUN_LABEL, STAGE_LABEL
from tests.tools.answering_aws import Parameters
from tests.tools.nodes.slurm_nodes import group, node, running_cluster
from tools.jobs.kubernetes import watch
from tools.nodes import logs

REPOSITORY = Path(__file__).parents[2]
CLUSTERS = REPOSITORY / "clusters"
LIFECYCLE = REPOSITORY / "lifecycle" / "slurm"
PREFIX_OF_LARGE_SUBNETS = 17
GPUS_PER_NODE = 8
LOG_LINES = 150
"""Lines of the setup of a node."""
STREAM_PREFIX = "LifecycleConfig/"
FAILED_SHARE = 50
"""One node of this many has failed."""
BEGUN = (
    "2026-11-21T10:00:00Z bootstrap: esm2-slurm: worker ip-10-0-0-31 (10.0.0.31) of group workers"
)
DONE = "2026-11-21T10:00:09Z bootstrap: done: 9 steps, 4 changes, 0 warnings"
FAILED = "2026-11-21T10:00:09Z bootstrap: ERROR: step lustre-mount failed: it is no mount"
HANG_SECONDS = 60
"""Longest wait for the news of a hang."""
POLL_SECONDS = 0.05
RECEIVED_BYTES = 1 << 20
"""Most bytes that a node receives in a hang."""
RUN_ID = "growth"


def _template(number: int, folder: Path) -> Costs:
    """Synthesize the stack of an EKS cluster with as many teams as access entries."""
    # The CDK starts Node.js when it is imported.
    from tests.stacks.grown_clusters import cluster_of, synthesized_templates

    clusters = {str(number): cluster_of(number, number)}
    found = synthesized_templates(clusters, folder / f"of-{number}")
    texts = [path.read_text() for path in found.values()]
    return {
        "bytes": sum(map(len, texts)),
        "resources": sum(len(json.loads(text)["Resources"]) for text in texts),
    }


def _addresses(num_nodes: int, _: Path) -> Costs:
    """Count the addresses of P5 nodes in a new VPC, which the rules of the cluster file accept."""
    document = yaml.safe_load((CLUSTERS / "slurm-p5.yaml").read_text())
    document["network"]["private_prefix_length"] = PREFIX_OF_LARGE_SUBNETS
    [workers] = [each for each in document["instance_groups"] if each["role"] == "worker"]
    workers["num_instances"] = num_nodes
    cluster = SlurmCluster.model_validate(document)
    assert not violations(cluster)
    taken = address_takers(cluster)[zone_ids(cluster)[0]].total() + RESERVED_ADDRESSES
    return {
        "addresses": taken,
        "share of the first subnet": taken / 2 ** (32 - PREFIX_OF_LARGE_SUBNETS),
    }


def _users(num_users: int, folder: Path) -> Costs:
    target = "benchmarks.growth.node_users:count_programs"
    done = run_target(target, num_users, str(folder), python_path=[LIFECYCLE])
    return {"programs on a node": done.result}


class _Logs:
    """CloudWatch Logs with a stream for each node."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        self._events: dict[str, list[dict[str, Any]]] = {}
        now_ms = int(time.time() * 1000)
        for number, each in enumerate(nodes):
            name = f"{STREAM_PREFIX}{each['InstanceGroupName']}/{each['InstanceId']}"
            last = DONE if number % FAILED_SHARE else FAILED
            lines = [BEGUN, *["one line of a step"] * (LOG_LINES - 2), last]
            self._events[name] = [
                {
                    "logStreamName": name,
                    "eventId": f"{name}{line}",
                    "timestamp": now_ms + line,
                    "message": text,
                }
                for line, text in enumerate(lines)
            ]

    def groups(self, parameters: Parameters) -> dict[str, Any]:
        name = f"{parameters['logGroupNamePrefix']}abc123def456"
        return {"logGroups": [{"logGroupName": name, "creationTime": 1}]}

    def streams(self, _: Parameters) -> dict[str, Any]:
        found = [
            {
                "logStreamName": name,
                "creationTime": events[0]["timestamp"],
                "lastEventTimestamp": events[-1]["timestamp"],
            }
            for name, events in self._events.items()
        ]
        return {"logStreams": found}

    def events(self, parameters: Parameters) -> dict[str, Any]:
        names = parameters["logStreamNames"]
        return {"events": [event for name in names for event in self._events[name]]}


def _logs(num_nodes: int, _: Path) -> Costs:
    """Run ``make logs`` with stand-ins for SageMaker and CloudWatch."""
    nodes = [node("workers", number) for number in range(1, num_nodes + 1)]
    aws = running_cluster("esm2-slurm", [group("workers", "Compute", num_nodes)], nodes)
    found = _Logs(nodes)
    aws.answer("logs", "DescribeLogGroups", found.groups)
    aws.answer("logs", "DescribeLogStreams", found.streams)
    aws.answer("logs", "FilterLogEvents", found.events)
    arguments = ["logs", "--cluster", str(CLUSTERS / "slurm.yaml")]
    output = io.StringIO()
    before = time.process_time()
    with (
        mock.patch.object(logs, "open_session", lambda region, profile: aws.session),
        mock.patch.object(sys, "argv", arguments),
        contextlib.redirect_stdout(output),
    ):
        logs.main()
    return {
        CPU_SECONDS: time.process_time() - before,
        "lines printed": len(output.getvalue().splitlines()),
    }


class _Kubectl:
    """Jobs and pods of a namespace: five running jobs, each with one pod per node."""

    namespace = "hyperpod-training"
    where = "the stand-in"

    def __init__(self, num_pods: int) -> None:
        self._num_pods = num_pods
        self.num_calls = 0

    def matching(self, kind: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        self.num_calls += 1
        if kind != "pod":
            return [self._job(number) for number in range(watch.NUM_SHOWN)]
        return [self._pod(number) for number in range(self._num_pods)]

    def run(self, *_: str) -> str:
        self.num_calls += 1
        return "step 10/200: loss 2.900\n"

    @staticmethod
    def _job(number: int) -> dict[str, Any]:
        labels = {STAGE_LABEL: "train", RUN_LABEL: "run"}
        condition = {"type": "Completed", "status": "True"}
        return {
            "metadata": {"name": f"job-{number}", "labels": labels},
            "status": {"conditions": [condition]},
        }

    @staticmethod
    def _pod(number: int) -> dict[str, Any]:
        running = {"name": "train", "state": {"running": {}}}
        return {
            "metadata": {"name": f"job-pods-{number}"},
            "spec": {"nodeName": f"hyperpod-i-{number}"},
            "status": {"phase": "Running", "containerStatuses": [running]},
        }


def _status(num_gpus: int, _: Path) -> Costs:
    """Run ``make status TARGET=eks`` of five jobs of that many GPUs with a stand-in for kubectl."""
    kubectl = _Kubectl(num_gpus // GPUS_PER_NODE)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        watch.status(kubectl, "hyperpod", everything=False)  # type: ignore[arg-type]
    return {
        "lines printed": len(output.getvalue().splitlines()),
        "programs started": kubectl.num_calls,
    }


def _hang(num_nodes: int, _: Path) -> Costs:
    """Let each node of a step report a hang, and count what the first node sends until all know it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    deadline = time.monotonic() + HANG_SECONDS
    with ExitStack() as stack:
        stack.enter_context(HangServer(port, RUN_ID))
        observer = stack.enter_context(_connected(port, deadline))
        observer.sendall(f"{RUN_ID} observer\n".encode())
        channels = [
            HangChannel(f"node-{number}", host="127.0.0.1", port=port, run_id=RUN_ID)
            for number in range(num_nodes)
        ]
        for channel in channels:
            stack.enter_context(channel)
            channel.announce(Event.HUNG)
        while any(channel.count(Event.HUNG) < num_nodes for channel in channels):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all {num_nodes} nodes know of the hang")
            time.sleep(POLL_SECONDS)
        received = len(observer.recv(RECEIVED_BYTES))
    return {"bytes sent": received * num_nodes}


def _connected(port: int, deadline: float) -> socket.socket:
    """Connect to a server that may not listen yet."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


ROWS = (
    Row(
        name="template",
        title="templates of an EKS cluster",
        scale=TEAMS,
        sizes=(10, 30, 90),
        measure=_template,
        unknown="deployment of that many in AWS",
        expected_seconds=90,
    ),
    Row(
        name="users",
        title="programs of node setup if no user changes, counted with stand-ins",
        scale=USERS,
        sizes=(10, 100, 1_000),
        measure=_users,
        unknown="time of a program on a busy node",
        expected_seconds=10,
    ),
    Row(
        name="addresses",
        title="addresses of P5 nodes in a new VPC, counted",
        scale=NODES,
        sizes=(10, 100, 1_000),
        measure=_addresses,
        unknown="AWS's capacity of P5 in one zone",
        expected_seconds=5,
    ),
    Row(
        name="logs",
        title=f"`make logs`, {LOG_LINES} lines per node, with a stand-in for AWS",
        scale=NODES,
        sizes=(30, 100, 1_000),
        measure=_logs,
        unknown="CloudWatch's limit of requests",
        expected_seconds=20,
    ),
    Row(
        name="status",
        title="`make status TARGET=eks` of five jobs, with a stand-in for kubectl",
        scale=GPUS,
        sizes=(64, 512, 4_096),
        measure=_status,
        unknown="time of a Kubernetes API server for a list of 512 pods",
        expected_seconds=5,
    ),
    Row(
        name="hang",
        title="messages of a hang on all nodes, on one machine",
        scale=NODES,
        sizes=(10, 30, 100),
        measure=_hang,
        unknown="a network between the nodes",
        expected_seconds=15,
    ),
)
