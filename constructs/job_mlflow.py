"""What pods of jobs need to log to SageMaker's managed MLflow."""

from __future__ import annotations

from typing import Any

from config.eks_cluster import EksCluster
from config.kubernetes_names import JOB_ENVIRONMENT, JOB_SERVICE_ACCOUNT, job_namespaces
from constructs import Construct
from constructs.kubernetes_cluster import KubernetesCluster
from constructs.managed_mlflow import ManagedMlflow
from constructs.manifest import manifest
from constructs.pod_role import PodRole


class JobMlflow(Construct):
    """In every namespace of jobs: MLflow's address, and a service account whose pods may log to it, no more.

    The namespaces must be there.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        kubernetes: KubernetesCluster,
        mlflow: ManagedMlflow,
    ) -> None:
        super().__init__(scope, construct_id)
        namespaces = job_namespaces(settings)
        first, *others = namespaces
        role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespace=first,
            further_namespaces=others,
            service_account=JOB_SERVICE_ACCOUNT,
            statements=[mlflow.to_log_runs],
        )
        variables = {"MLFLOW_TRACKING_URI": mlflow.arn}
        objects = manifest(
            self,
            "Objects",
            kubernetes=kubernetes,
            objects=[
                made
                for namespace in namespaces
                for made in (
                    _head("ServiceAccount", JOB_SERVICE_ACCOUNT, namespace),
                    {**_head("ConfigMap", JOB_ENVIRONMENT, namespace), "data": variables},
                )
            ],
        )
        # A pod reads its role at its start, and the account is what lets it start.
        objects.node.add_dependency(role)


def _head(kind: str, name: str, namespace: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}
