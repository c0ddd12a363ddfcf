"""Nodes of a HyperPod cluster: their names, and their targets in Session Manager."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from tools.aws_session import all_items, if_present
from tools.command_line import format_table

HEAD = "head"
"""Name of the first login node, or of the controller if there is no login group."""
UNREACHABLE = {"Pending", "ShuttingDown", "NotFound", "DetachInProgress", "AttachInProgress"}
"""States in which no session can start; a move replaces the volumes. In other states the agent may run."""
KUBERNETES_PREFIX = "hyperpod-"
"""Prefix of a node's name in Kubernetes, before its instance id."""
NUM_SHOWN = 10
"""Most nodes that an error message lists."""


@dataclass(frozen=True)
class Node:
    name: str
    """``<group>-<n>``, counted from 1 by launch time; a replaced node gets the last number."""
    group: str
    instance_id: str
    instance_type: str
    status: str
    message: str
    """Explanation of the state; may be empty."""
    host_name: str
    """Name within the VPC and in Slurm, such as ip-10-0-1-2; empty until the node has one."""


@dataclass(frozen=True)
class ClusterNodes:
    cluster_name: str
    cluster_arn: str
    status: str
    failure: str
    """Reason of a failed state; otherwise empty."""
    head_groups: frozenset[str]
    """Login groups, or the controller's group if there is no login group."""
    nodes: tuple[Node, ...]
    """Nodes by group, and within a group by launch time."""

    @property
    def cluster_id(self) -> str:
        """Return the id of twelve characters, which targets and log groups have."""
        return self.cluster_arn.rpartition("/")[2]

    def target(self, node: Node) -> str:
        """Return the target of a HyperPod node for `aws ssm start-session --target`."""
        return f"sagemaker-cluster:{self.cluster_id}_{node.group}-{node.instance_id}"


def read_cluster_nodes(sagemaker: Any, cluster_name: str) -> ClusterNodes:
    """Return a cluster with its nodes.

    Raises:
        ValueError: if the cluster does not exist, with the names of existing ones.
    """
    cluster = if_present(sagemaker.describe_cluster, ClusterName=cluster_name)
    if cluster is None:
        summaries = all_items(sagemaker, "list_clusters", "ClusterSummaries")
        names = sorted(summary["ClusterName"] for summary in summaries)
        existing = f"existing clusters: {', '.join(names)}" if names else "there are no clusters"
        raise ValueError(
            f"no cluster {cluster_name} in {sagemaker.meta.region_name}; {existing}; deploy it with "
            "`make deploy`, or name another cluster file"
        )
    groups_of_role: dict[str, set[str]] = defaultdict(set)
    for group in cluster["InstanceGroups"]:
        role = group.get("SlurmConfig", {}).get("NodeType", "")
        groups_of_role[role].add(group["InstanceGroupName"])
    summaries = all_items(
        sagemaker, "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=cluster_name
    )
    return ClusterNodes(
        cluster_name=cluster_name,
        cluster_arn=cluster["ClusterArn"],
        status=cluster["ClusterStatus"],
        failure=cluster.get("FailureMessage", ""),
        head_groups=frozenset(groups_of_role["Login"] or groups_of_role["Controller"]),
        nodes=tuple(_nodes(summaries)),
    )


def _nodes(summaries: list[dict[str, Any]]) -> list[Node]:
    def order(summary: dict[str, Any]) -> tuple[Any, ...]:
        return summary["InstanceGroupName"], summary["LaunchTime"], summary["InstanceId"]

    count: Counter[str] = Counter()
    nodes = []
    for summary in sorted(summaries, key=order):
        group = summary["InstanceGroupName"]
        count[group] += 1
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
    """Return the node for ``head``, a group with one node, a node's name, a host name or an instance id.

    A faulty node is returned if no running one matches, because a shell on it helps to find the fault.

    Raises:
        ValueError: if no node matches, more than one does, or no session with it can start.
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
            f"no node {wanted} in cluster {cluster.cluster_name}; its nodes are {_list(cluster.nodes)}"
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
    """Return the nodes with a name, host name, instance id or group, in any state."""
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
    rows = [
        (node.name, node.host_name, node.instance_id, node.instance_type, node.status)
        for node in cluster.nodes
    ]
    return format_table(header, rows)
