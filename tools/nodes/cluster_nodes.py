"""The nodes of a HyperPod cluster, their names, and how Session Manager addresses them."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tools.aws_session import all_items, if_present
from tools.command_line import format_table

HEAD = "head"
"""Names the first login node, or the controller where there is no login group."""
UNREACHABLE = {"Pending", "ShuttingDown", "NotFound"}
"""States in which no session can start; in the others the agent may well run."""
KUBERNETES_PREFIX = "hyperpod-"
"""Begins a node's name in Kubernetes, before its instance id."""
NUM_SHOWN = 10
"""Nodes listed in an error message."""


@dataclass(frozen=True)
class Node:
    name: str
    """``<group>-<n>``, counted from 1 by launch time; a replaced node gets the last number."""
    group: str
    instance_id: str
    instance_type: str
    status: str
    message: str
    host_name: str
    """Name within the VPC and in Slurm, such as ip-10-0-1-2; empty until the node has one."""


@dataclass(frozen=True)
class ClusterNodes:
    cluster_name: str
    cluster_id: str
    status: str
    failure: str
    head_groups: frozenset[str]
    nodes: tuple[Node, ...]

    def target(self, node: Node) -> str:
        """Return the target of a HyperPod node for `aws ssm start-session --target`."""
        return f"sagemaker-cluster:{self.cluster_id}_{node.group}-{node.instance_id}"


def read_cluster_nodes(sagemaker: Any, cluster_name: str) -> ClusterNodes:
    """Ask SageMaker for a cluster and its nodes.

    Raises:
        ValueError: if there is no such cluster, naming those there are.
    """
    cluster = if_present(sagemaker.describe_cluster, ClusterName=cluster_name)
    if cluster is None:
        names = sorted(c["ClusterName"] for c in all_items(sagemaker, "list_clusters", "ClusterSummaries"))
        there = f"clusters there are: {', '.join(names)}" if names else "there are no clusters"
        raise ValueError(
            f"no cluster {cluster_name} in {sagemaker.meta.region_name}; {there}; deploy it with "
            "`make deploy`, or name another cluster file"
        )
    groups: dict[str, set[str]] = defaultdict(set)
    for group in cluster["InstanceGroups"]:
        groups[group.get("SlurmConfig", {}).get("NodeType", "")].add(group["InstanceGroupName"])
    summaries = all_items(sagemaker, "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=cluster_name)
    return ClusterNodes(
        cluster_name=cluster_name,
        cluster_id=cluster["ClusterArn"].rpartition("/")[2],
        status=cluster["ClusterStatus"],
        failure=cluster.get("FailureMessage", ""),
        head_groups=frozenset(groups["Login"] or groups["Controller"]),
        nodes=tuple(_nodes(summaries)),
    )


def _nodes(summaries: list[dict[str, Any]]) -> list[Node]:
    count: dict[str, int] = {}
    nodes = []
    for summary in sorted(
        summaries, key=lambda s: (s["InstanceGroupName"], s["LaunchTime"], s["InstanceId"])
    ):
        group = summary["InstanceGroupName"]
        count[group] = count.get(group, 0) + 1
        nodes.append(
            Node(
                name=f"{group}-{count[group]}",
                group=group,
                instance_id=summary["InstanceId"],
                instance_type=summary["InstanceType"],
                status=summary["InstanceStatus"]["Status"],
                message=summary["InstanceStatus"].get("Message", ""),
                host_name=summary.get("PrivateDnsHostname", "").partition(".")[0],
            )
        )
    return nodes


def choose_node(cluster: ClusterNodes, wanted: str = HEAD) -> Node:
    """The node that a person means: head, a group's only node, a node's name, host name or instance id.

    A node that is unwell is taken where no other is meant: one looks into it by a shell.

    Raises:
        ValueError: if none is meant, more than one, or one that is not there yet or any more.
    """
    if not cluster.nodes:
        failure = f" ({cluster.failure})" if cluster.failure else ""
        raise ValueError(
            f"cluster {cluster.cluster_name} has no nodes yet; it is {cluster.status}{failure}; "
            f"see `aws sagemaker describe-cluster --cluster-name {cluster.cluster_name}`"
        )
    found = nodes_meant(cluster, wanted)
    if not found:
        raise ValueError(
            f"no node {wanted} in cluster {cluster.cluster_name}; there are {_list(cluster.nodes)}"
        )
    running = [node for node in found if node.status == "Running"]
    reachable = running or [node for node in found if node.status not in UNREACHABLE]
    if not reachable:
        node = found[0]
        reason = f" ({node.message})" if node.message else ""
        raise ValueError(
            f"{node.name}, {node.instance_id}, is {node.status}{reason}; "
            f"cluster {cluster.cluster_name} is {cluster.status}; wait until the node is Running"
        )
    if wanted != HEAD and len(found) > 1:
        raise ValueError(f"{wanted} has {len(found)} nodes; name one of {_list(found)}")
    return reachable[0]


def nodes_meant(cluster: ClusterNodes, wanted: str) -> tuple[Node, ...]:
    """Those of a name, host name, instance id or group, in whatever state; none if it means none."""
    if wanted == HEAD:
        return tuple(node for node in cluster.nodes if node.group in cluster.head_groups)
    instance_id = wanted.removeprefix(KUBERNETES_PREFIX)
    named = tuple(
        node
        for node in cluster.nodes
        if instance_id == node.instance_id or wanted in (node.name, node.host_name)
    )
    return named or tuple(node for node in cluster.nodes if node.group == wanted)


def _list(nodes: tuple[Node, ...]) -> str:
    more = f" and {len(nodes) - NUM_SHOWN} more (--list)" if len(nodes) > NUM_SHOWN else ""
    return ", ".join(node.name for node in nodes[:NUM_SHOWN]) + more


def nodes_table(cluster: ClusterNodes) -> str:
    header = ("node", "host", "instance", "type", "status")
    rows = [(n.name, n.host_name, n.instance_id, n.instance_type, n.status) for n in cluster.nodes]
    return format_table(header, rows)
