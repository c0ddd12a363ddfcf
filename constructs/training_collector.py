"""What brings trainings' metrics into the cluster's Prometheus workspace, on EKS."""

from __future__ import annotations

from config.eks_cluster import EksCluster
from config.training_collector import NAME, NAMESPACE, collector_objects
from constructs import Construct
from constructs.kubernetes_cluster import KubernetesCluster
from constructs.manifest import manifest
from constructs.metrics_workspace import MetricsWorkspace
from constructs.node_statements import Statement
from constructs.pod_role import PodRole


class TrainingCollector(Construct):
    """Prometheus as an agent, which finds trainings' pods and may write to the workspace, no more.

    The namespaces of jobs must be there.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        kubernetes: KubernetesCluster,
        metrics: MetricsWorkspace,
    ) -> None:
        super().__init__(scope, construct_id)
        role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespace=NAMESPACE,
            service_account=NAME,
            statements=[Statement("WriteMetrics", ["aps:RemoteWrite"], [metrics.workspace.attr_arn])],
        )
        objects = manifest(
            self,
            "Objects",
            kubernetes=kubernetes,
            objects=[*collector_objects(settings, remote_write_url=metrics.remote_write_url)],
        )
        objects.node.add_dependency(role)
