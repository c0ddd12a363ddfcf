"""What is installed when there are nodes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs

from config.facts import addons
from config.resource_names import JOB_ENVIRONMENT, JOB_SERVICE_ACCOUNT, job_namespaces
from constructs import Construct, IConstruct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.lustre_volumes import LustreVolumes
from constructs.eks.observability import ContainerInsights, Observability
from constructs.eks.pod_role import PodRole
from constructs.eks.task_governance import TaskGovernance
from constructs.monitoring.managed_mlflow import ManagedMlflow
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.nodes.eks_hyperpod_cluster import EksHyperPodCluster
from constructs.policy.statement_role import Statement
from constructs.storage.file_systems import LustreFileSystem
from manifests.job_access import job_roles
from manifests.karpenter import karpenter_objects
from manifests.training_collector import NAME, NAMESPACE, collector_objects


class ClusterServices(Construct):
    """Names, certificates, quotas; then, beside each other, what needs those.

    The certificates are for webhooks. Task governance comes before what makes pods, which its webhook sees,
    and before what lies in the namespaces of its teams.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        hyperpod: EksHyperPodCluster,
        lustre: LustreFileSystem,
        metrics: MetricsWorkspace | None,
        mlflow: ManagedMlflow | None,
        key: kms.IKey | None,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        settings = kubernetes.settings
        steps: list[IConstruct] = [
            kubernetes.addon(self, "CoreDns", addons.COREDNS),
            kubernetes.addon(self, "CertManager", addons.CERT_MANAGER),
        ]
        if settings.task_governance:
            steps.append(
                TaskGovernance(
                    self,
                    "TaskGovernance",
                    governance=settings.task_governance,
                    kubernetes=kubernetes,
                    hyperpod=hyperpod,
                    log=log,
                )
            )
        volumes = LustreVolumes(self, "Lustre", kubernetes=kubernetes, lustre=lustre)
        access = kubernetes.manifest(self, "JobRoles", job_roles(settings))
        # Of the namespaces of jobs, one of which comes with the volumes.
        access.node.add_dependency(volumes)
        others: list[IConstruct] = [volumes, access]
        if settings.training_operator == "hyperpod":
            others.append(
                TrainingOperator(self, "TrainingOperator", kubernetes=kubernetes, hyperpod=hyperpod)
            )
        if metrics:
            others.append(Observability(self, "Observability", kubernetes=kubernetes, metrics=metrics))
            collector = TrainingCollector(self, "TrainingMetrics", kubernetes=kubernetes, metrics=metrics)
            # As access: the common namespace comes with the volumes.
            collector.node.add_dependency(volumes)
            others.append(collector)
        if mlflow:
            jobs = JobMlflow(self, "Mlflow", kubernetes=kubernetes, mlflow=mlflow)
            # As access: the common namespace comes with the volumes.
            jobs.node.add_dependency(volumes)
            others.append(jobs)
        if settings.container_insights:
            others.append(ContainerInsights(self, "ContainerInsights", kubernetes=kubernetes, key=key))
        if settings.autoscaling == "karpenter":
            others.append(kubernetes.manifest(self, "NodePools", karpenter_objects(settings)))
        for before, after in pairwise(steps):
            after.node.add_dependency(before)
        for other in others:
            other.node.add_dependency(steps[-1])


class TrainingOperator(Construct):
    """The add-on, and before it the identity of its pods, which it does not take as an argument."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        hyperpod: EksHyperPodCluster,
    ) -> None:
        super().__init__(scope, construct_id)
        role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespace="aws-hyperpod",
            service_account="hp-training-operator-controller-manager",
            # What AmazonSageMakerHyperPodTrainingOperatorAccess allows, of this cluster alone.
            statements=[Statement("DescribeNodes", ["sagemaker:DescribeClusterNode"], [hyperpod.arn])],
        )
        operator = kubernetes.addon(self, "Addon", addons.TRAINING_OPERATOR)
        operator.node.add_dependency(role)


class TrainingCollector(Construct):
    """Prometheus as an agent, which finds trainings' pods and may write to the workspace, no more.

    The namespaces of jobs must be there.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
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
            statements=[metrics.to_write],
        )
        wanted = collector_objects(kubernetes.settings, remote_write_url=metrics.remote_write_url)
        objects = kubernetes.manifest(self, "Objects", wanted)
        objects.node.add_dependency(role)


class JobMlflow(Construct):
    """In every namespace of jobs: MLflow's address, and a service account whose pods may log to it, no more.

    The namespaces must be there.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster, mlflow: ManagedMlflow
    ) -> None:
        super().__init__(scope, construct_id)
        namespaces = job_namespaces(kubernetes.settings)
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
        objects = kubernetes.manifest(
            self,
            "Objects",
            [
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
