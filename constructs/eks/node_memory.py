"""Folders in the memory of nodes for the namespaces of jobs."""

from collections.abc import Sequence

from aws_cdk import RemovalPolicy

from config.resource_names import job_namespaces
from config.stack_division import division
from constructs import Construct, IDependable
from constructs.eks.kubernetes_cluster import KubernetesCluster
from manifests.node_memory import memory_claim, memory_keeper, memory_volume


class NodeMemory(Construct):
    """Volume and claim in every namespace of jobs, and the DaemonSet that owns the folders.

    Volumes and claims stay as long as the EKS cluster, like those of the Lustre file system. They have no
    content.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster
    ) -> None:
        super().__init__(scope, construct_id)
        self._kubernetes = kubernetes
        settings = kubernetes.settings
        self.add_namespaces(self, division(settings).namespaces)
        kubernetes.manifest(self, "Keeper", [memory_keeper(job_namespaces(settings))])

    def add_namespaces(
        self, scope: Construct, namespaces: Sequence[str], *, after: Sequence[IDependable] = ()
    ) -> None:
        """Create volumes and claims of namespaces of jobs."""
        volumes = [memory_volume(name) for name in namespaces]
        claims = [memory_claim(name) for name in namespaces]
        self._kubernetes.manifest(
            scope, "Volumes", [*volumes, *claims], removal=RemovalPolicy.RETAIN, after=after
        )
