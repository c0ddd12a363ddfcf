"""What is installed when there are nodes."""

from __future__ import annotations

from itertools import pairwise

from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs

from config import addons
from config.eks_cluster import EksCluster
from config.job_access import job_roles
from config.karpenter import karpenter_objects
from config.training_collector import NAME, NAMESPACE, collector_objects
from constructs import Construct, IConstruct
from constructs.addon import addon
from constructs.container_insights import ContainerInsights
from constructs.eks_hyperpod_cluster import EksHyperPodCluster
from constructs.job_mlflow import JobMlflow
from constructs.kubernetes_cluster import KubernetesCluster
from constructs.lustre_file_system import LustreFileSystem
from constructs.lustre_volumes import LustreVolumes
from constructs.managed_mlflow import ManagedMlflow
from constructs.manifest import manifest
from constructs.metrics_workspace import MetricsWorkspace
from constructs.node_statements import Statement
from constructs.observability import Observability
from constructs.pod_role import PodRole
from constructs.task_governance import TaskGovernance


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
        settings: EksCluster,
        kubernetes: KubernetesCluster,
        hyperpod: EksHyperPodCluster,
        lustre: LustreFileSystem,
        metrics: MetricsWorkspace | None,
        mlflow: ManagedMlflow | None,
        key: kms.IKey | None,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        steps: list[IConstruct] = [
            addon(self, "CoreDns", settings=settings, kubernetes=kubernetes, name=addons.COREDNS),
            addon(self, "CertManager", settings=settings, kubernetes=kubernetes, name=addons.CERT_MANAGER),
        ]
        if settings.task_governance:
            steps.append(
                TaskGovernance(
                    self,
                    "TaskGovernance",
                    settings=settings,
                    governance=settings.task_governance,
                    kubernetes=kubernetes,
                    hyperpod=hyperpod,
                    log=log,
                )
            )
        volumes = LustreVolumes(self, "Lustre", settings=settings, kubernetes=kubernetes, lustre=lustre)
        access = manifest(self, "JobRoles", kubernetes=kubernetes, objects=[*job_roles(settings)])
        # Of the namespaces of jobs, one of which comes with the volumes.
        access.node.add_dependency(volumes)
        others: list[IConstruct] = [volumes, access]
        if settings.training_operator == "hyperpod":
            others.append(
                TrainingOperator(
                    self, "TrainingOperator", settings=settings, kubernetes=kubernetes, hyperpod=hyperpod
                )
            )
        if metrics:
            others.append(
                Observability(
                    self,
                    "Observability",
                    settings=settings,
                    kubernetes=kubernetes,
                    metrics=metrics,
                )
            )
            collector = TrainingCollector(
                self, "TrainingMetrics", settings=settings, kubernetes=kubernetes, metrics=metrics
            )
            # As access: the common namespace comes with the volumes.
            collector.node.add_dependency(volumes)
            others.append(collector)
        if mlflow:
            jobs = JobMlflow(self, "Mlflow", settings=settings, kubernetes=kubernetes, mlflow=mlflow)
            # As access: the common namespace comes with the volumes.
            jobs.node.add_dependency(volumes)
            others.append(jobs)
        if settings.container_insights:
            others.append(
                ContainerInsights(
                    self, "ContainerInsights", settings=settings, kubernetes=kubernetes, key=key
                )
            )
        if settings.autoscaling == "karpenter":
            others.append(
                manifest(self, "NodePools", kubernetes=kubernetes, objects=[*karpenter_objects(settings)])
            )
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
        settings: EksCluster,
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
        operator = addon(
            self, "Addon", settings=settings, kubernetes=kubernetes, name=addons.TRAINING_OPERATOR
        )
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
