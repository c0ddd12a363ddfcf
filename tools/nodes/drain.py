"""Keep new jobs off nodes, list the jobs that run there, and let the nodes take jobs again."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from tools.kubernetes.kubectl import Kubectl
from tools.nodes.cluster_nodes import KUBERNETES_PREFIX, Node
from tools.nodes.head_node import SLURM_PROGRAMS, HeadNode

JOB = "job "
"""First word of each line about a job, so that other output of a session does not count as one."""
DRAINED = "drained "
"""First word of each line about a node that the script has drained."""
SYSTEM_NAMESPACES = frozenset({"kube-system", "aws-hyperpod"})
"""Namespaces of pods that no user waits for."""
ENDED_PHASES = frozenset({"Succeeded", "Failed"})
_SLURM = f"""
set -euo pipefail
export PATH="{SLURM_PROGRAMS}:$PATH"
"""
# A node that never joined is not in Slurm, and must be replaceable all the same.
_LIST_JOBS = f"""{_SLURM}
for node in "$@"; do
    if scontrol show node "$node" >/dev/null 2>&1; then
        squeue --noheader --nodelist="$node" --format="{JOB}%i of %u on $node, running for %M of %l: %j"
    fi
done
"""
# A node that another program has drained keeps its reason, and stays drained afterwards.
_DRAIN = rf"""{_SLURM}
reason="$1"; shift
for node in "$@"; do
    if ! state="$(scontrol --oneliner show node "$node" 2>&1)"; then
        echo "$node is not in Slurm"
    elif [[ "$state" =~ \ State=[^[:space:]]*DRAIN ]]; then
        echo "$node was drained before"
    else
        scontrol update NodeName="$node" State=DRAIN Reason="$reason"
        echo "{DRAINED}$node"
    fi
done
"""
_RESUME = f"""{_SLURM}
for node in "$@"; do
    scontrol update NodeName="$node" State=RESUME
done
"""


class JobPlacement(ABC):
    """Scheduler, as far as it decides which nodes take jobs."""

    @abstractmethod
    def jobs(self, nodes: Sequence[Node]) -> list[str]:
        """Return a line for each job on the nodes.

        Raises:
            ValueError: if the scheduler refuses, or cannot be reached.
        """

    @abstractmethod
    def drain(self, nodes: Sequence[Node], reason: str) -> list[Node]:
        """Keep new jobs off nodes, and return those that took jobs before.

        Raises:
            ValueError: if the scheduler refuses, or cannot be reached.
        """

    @abstractmethod
    def resume(self, nodes: Sequence[Node]) -> None:
        """Let nodes take jobs again.

        Raises:
            ValueError: if the scheduler refuses, or cannot be reached.
        """


class SlurmPlacement(JobPlacement):
    """Slurm, through a session with the head node."""

    def __init__(self, head: HeadNode) -> None:
        self._head = head

    def jobs(self, nodes: Sequence[Node]) -> list[str]:
        lines = self._run(_LIST_JOBS, _host_names(nodes))
        return [line for line in lines if line.startswith(JOB)]

    def drain(self, nodes: Sequence[Node], reason: str) -> list[Node]:
        lines = self._run(_DRAIN, [reason, *_host_names(nodes)])
        drained = {line.removeprefix(DRAINED) for line in lines if line.startswith(DRAINED)}
        return [node for node in nodes if node.host_name in drained]

    def resume(self, nodes: Sequence[Node]) -> None:
        self._run(_RESUME, _host_names(nodes))

    def _run(self, script: str, arguments: Sequence[str]) -> list[str]:
        lines: list[str] = []
        if self._head.run_as_root(script, arguments, lines.append):
            raise ValueError(f"{self._head.name}: {' '.join(lines) or 'Slurm gave no reason'}")
        return lines


def _host_names(nodes: Sequence[Node]) -> list[str]:
    """Return the nodes' names in Slurm, without nodes that have no name yet."""
    return [node.host_name for node in nodes if node.host_name]


class KubernetesPlacement(JobPlacement):
    """Kubernetes, through kubectl."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl

    def jobs(self, nodes: Sequence[Node]) -> list[str]:
        return [line for node in nodes for line in self._pods(node)]

    def drain(self, nodes: Sequence[Node], reason: str) -> list[Node]:
        # Kubernetes keeps no reason, and its events name the caller.
        open_nodes = [node for node in nodes if self._takes_jobs(node)]
        for node in open_nodes:
            self._kubectl.run("cordon", kubernetes_name(node))
        return open_nodes

    def resume(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._kubectl.run("uncordon", kubernetes_name(node))

    def _takes_jobs(self, node: Node) -> bool:
        """Return whether Kubernetes places pods on a node; it cannot if the node never joined."""
        found = self._kubectl.find("node", kubernetes_name(node))
        return found is not None and not found["spec"].get("unschedulable")

    def _pods(self, node: Node) -> Iterable[str]:
        """Yield a line for each pod that would end with the node and that no DaemonSet starts again."""
        selector = f"--field-selector=spec.nodeName={kubernetes_name(node)}"
        text = self._kubectl.run("get", "pods", "--all-namespaces", selector, "--output=json")
        for pod in json.loads(text)["items"]:
            metadata = pod["metadata"]
            owners = {owner["kind"] for owner in metadata.get("ownerReferences", [])}
            has_ended = pod.get("status", {}).get("phase") in ENDED_PHASES
            if has_ended or "DaemonSet" in owners or metadata["namespace"] in SYSTEM_NAMESPACES:
                continue
            yield f"pod {metadata['name']} in {metadata['namespace']}, on {node.name}"


def kubernetes_name(node: Node) -> str:
    """Return the node's name in Kubernetes."""
    return f"{KUBERNETES_PREFIX}{node.instance_id}"
