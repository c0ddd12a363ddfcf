"""Requests of SageMaker's API about single nodes of a cluster, and the results per node."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tools.aws_session import if_present
from tools.nodes.cluster_nodes import ClusterNodes, Node

Batch = Literal["replace", "reboot"]
Check = Literal["InstanceStress", "InstanceConnectivity", "MultiNodeTrainingValidation"]
CONTINUOUS = "Continuous"
IN_SERVICE = "InService"


@dataclass(frozen=True)
class Result:
    """Answer of the service about one node."""

    node: Node
    failure: str
    """Code and message of the error; empty if the service accepted the node."""


@dataclass(frozen=True)
class Destination:
    """Group of nodes that receives moved nodes."""

    cluster_name: str
    cluster_arn: str
    group: str


def send_batch(
    sagemaker: Any, cluster: ClusterNodes, action: Batch, nodes: Sequence[Node]
) -> list[Result]:
    """Request the replacement or the restart of nodes, at most 25, and return the results."""
    send = {
        "replace": sagemaker.batch_replace_cluster_nodes,
        "reboot": sagemaker.batch_reboot_cluster_nodes,
    }[action]
    response = send(ClusterName=cluster.cluster_name, NodeIds=[node.instance_id for node in nodes])
    return _results(nodes, response, code="ErrorCode")


def start_health_check(
    sagemaker: Any, cluster: ClusterNodes, nodes: Sequence[Node], checks: Sequence[Check]
) -> list[Result]:
    """Start deep health checks; the service accepts all nodes or refuses the request."""
    sagemaker.start_cluster_health_check(
        ClusterName=cluster.cluster_name,
        DeepHealthCheckConfigurations=[
            {
                "InstanceGroupName": group,
                "InstanceIds": [node.instance_id for node in members],
                "DeepHealthChecks": list(checks),
            }
            for group, members in _by_group(nodes).items()
        ],
    )
    return [Result(node, "") for node in nodes]


def move_nodes(
    sagemaker: Any, cluster: ClusterNodes, nodes: Sequence[Node], to: Destination
) -> list[Result]:
    """Move nodes of one group to another group, and return the results."""
    (group,) = {node.group for node in nodes}
    response = sagemaker.move_cluster_nodes(
        SourceClusterArn=cluster.cluster_arn,
        SourceInstanceGroupName=group,
        TargetClusterArn=to.cluster_arn,
        TargetInstanceGroupName=to.group,
        NodeIds=[node.instance_id for node in nodes],
    )
    return _results(nodes, response, code="Code")


def find_destination(
    sagemaker: Any, cluster: ClusterNodes, nodes: Sequence[Node], wanted: str
) -> Destination:
    """Return the group that ``wanted`` names, as ``<group>`` or ``<cluster>/<group>``.

    Raises:
        ValueError: listing everything that makes the service refuse the move.
    """
    cluster_name, _, group = wanted.rpartition("/")
    cluster_name = cluster_name or cluster.cluster_name
    described = if_present(sagemaker.describe_cluster, ClusterName=cluster_name)
    if described is None:
        raise ValueError(f"TO: there is no cluster {cluster_name} in {sagemaker.meta.region_name}")
    problems = list(_move_problems(described, cluster, nodes, cluster_name, group))
    if problems:
        raise ValueError("; ".join(problems))
    return Destination(cluster_name, described["ClusterArn"], group)


def _move_problems(
    described: dict[str, Any],
    cluster: ClusterNodes,
    nodes: Sequence[Node],
    cluster_name: str,
    group: str,
) -> Iterable[str]:
    if "Eks" not in described.get("Orchestrator", {}):
        yield f"TO: {cluster_name} runs Slurm; nodes move between groups of EKS clusters only"
    if described.get("NodeProvisioningMode") != CONTINUOUS:
        yield f"TO: {cluster_name} has no continuous provisioning, which a move requires"
    for name, status in (
        (cluster.cluster_name, cluster.status),
        (cluster_name, described["ClusterStatus"]),
    ):
        if status != IN_SERVICE:
            yield f"{name} is {status}; wait until it is {IN_SERVICE}"
    groups = {found["InstanceGroupName"]: found for found in described["InstanceGroups"]}
    if group not in groups:
        yield f"TO: {cluster_name} has no group {group}; its groups are {', '.join(sorted(groups))}"
        return
    sources = {node.group for node in nodes}
    if len(sources) > 1:
        yield f"NODE: the nodes are in the groups {', '.join(sorted(sources))}; move one group at a time"
    if cluster_name == cluster.cluster_name and group in sources:
        yield f"TO: the nodes are in group {group} already; name another group"
    requirements = groups[group].get("InstanceRequirements", {})
    accepted = requirements.get("CurrentInstanceTypes") or [groups[group].get("InstanceType")]
    for node in nodes:
        if node.instance_type not in accepted:
            types = ", ".join(map(str, accepted))
            yield f"{node.name} is {node.instance_type}, and group {group} has {types}"


def _by_group(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[node.group].append(node)
    return groups


def _results(nodes: Sequence[Node], response: dict[str, Any], *, code: str) -> list[Result]:
    """Return a result for each requested node.

    Args:
        nodes: nodes of the request.
        response: answer of the service.
        code: key of an error's code in the answer, which differs between requests.
    """
    accepted = set(response.get("Successful", []))
    failures = {
        failed["NodeId"]: f"{failed[code]}: {failed.get('Message', '')}".removesuffix(": ")
        for failed in response.get("Failed", [])
    }
    return [
        Result(
            node,
            failures.get(
                node.instance_id,
                "" if node.instance_id in accepted else "the service did not answer for this node",
            ),
        )
        for node in nodes
    ]
