"""Services that are installed after the nodes exist."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from aws_cdk import RemovalPolicy
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker

from config.facts import addons
from config.resource_names import (
    COMMON_NAMESPACE,
    JOB_ENVIRONMENT,
    JOB_SERVICE_ACCOUNT,
    POD_SECURITY,
    job_namespaces,
)
from constructs import Construct, IConstruct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.observability import container_insights, observability
from constructs.eks.task_governance import TaskGovernance
from constructs.monitoring.managed_mlflow import ManagedMlflow
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.nodes.node_roles import describe_file_systems
from constructs.policy.statement_role import Statement
from constructs.storage.file_systems import LustreFileSystem
from manifests.job_access import job_roles
from manifests.karpenter import karpenter_objects
from manifests.lustre import (
    LustreVolume,
    folder_job,
    persistent_volume,
    persistent_volume_claim,
    storage_class,
)
from manifests.objects import SYSTEM_NAMESPACE, kubernetes_object, namespace_of
from manifests.training_collector import NAME, NAMESPACE, collector_objects


class ClusterServices(Construct):
    """Names, certificates, quotas; then, beside each other, what needs those.

    The certificates are for webhooks. Task governance comes before what makes pods, which its webhook sees,
    and before what lies in the namespaces of its teams.
    """

    def __init__(
        self,
        scope: Construct,
        *,
        kubernetes: KubernetesCluster,
        hyperpod: sagemaker.CfnCluster,
        lustre: LustreFileSystem,
        metrics: MetricsWorkspace | None,
        mlflow: ManagedMlflow | None,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, "WithNodes")
        self._kubernetes, settings = kubernetes, kubernetes.settings
        steps: list[IConstruct] = [
            kubernetes.addon(self, "CoreDns", addons.COREDNS),
            kubernetes.addon(self, "CertManager", addons.CERT_MANAGER),
        ]
        if settings.task_governance:
            steps.append(
                TaskGovernance(
                    self,
                    governance=settings.task_governance,
                    kubernetes=kubernetes,
                    hyperpod=hyperpod,
                    log=log,
                )
            )
        volumes = self._volumes(lustre)
        # One of the namespaces of jobs comes with the volumes.
        in_namespaces: list[IConstruct] = [kubernetes.manifest(self, "JobRoles", job_roles(settings))]
        others: list[IConstruct] = [volumes]
        if settings.training_operator == "hyperpod":
            others.append(self._training_operator(hyperpod))
        if metrics:
            others.append(observability(self, kubernetes, metrics))
            in_namespaces.append(self._collector(metrics))
        if mlflow:
            in_namespaces.append(self._mlflow(mlflow))
        if settings.container_insights:
            others.append(container_insights(self, kubernetes))
        if settings.autoscaling == "karpenter":
            others.append(kubernetes.manifest(self, "NodePools", karpenter_objects(settings)))
        for before, after in pairwise(steps):
            after.node.add_dependency(before)
        for other in in_namespaces:
            other.node.add_dependency(volumes)
        for other in [*others, *in_namespaces]:
            other.node.add_dependency(steps[-1])

    def _volumes(self, lustre: LustreFileSystem) -> Construct:
        """FSx's driver, and a volume and a claim in every namespace of jobs. Those of teams exist before.

        Volumes are the whole file system: the data under the bucket's path are shared, and each namespace has
        a folder of its own for what it makes.

        The objects stay as long as the EKS cluster. Kubernetes deletes no claim, and so no namespace, while a
        pod uses it, and the deletion of the stack would wait for the end of jobs until it fails.
        """
        kubernetes, parent = self._kubernetes, Construct(self, "Lustre")
        # Nothing is provisioned. With the role the controller also learns the region, which it would ask of
        # the instance metadata that pods are kept from.
        role = kubernetes.pod_role(
            parent, "ControllerRole", [SYSTEM_NAMESPACE], "fsx-csi-controller-sa", [describe_file_systems()]
        )
        before: IConstruct = kubernetes.addon(parent, "Driver", addons.LUSTRE_DRIVER, after=[role])
        namespaces = job_namespaces(kubernetes.settings)
        volume = LustreVolume(lustre.file_system_id, lustre.dns_name, lustre.mount_name, lustre.capacity_gib)
        places = [SYSTEM_NAMESPACE, *namespaces]
        steps: dict[str, Sequence[Mapping[str, Any]]] = {
            "Volumes": [
                *([namespace_of(COMMON_NAMESPACE, POD_SECURITY)] if COMMON_NAMESPACE in namespaces else []),
                storage_class(),
                *(persistent_volume(volume, namespace) for namespace in places),
            ],
            "Claims": [persistent_volume_claim(volume, namespace) for namespace in places],
            "Folders": [folder_job(namespaces)],
        }
        for name, objects in steps.items():
            before = kubernetes.manifest(parent, name, objects, after=[before], removal=RemovalPolicy.RETAIN)
        return parent

    def _training_operator(self, hyperpod: sagemaker.CfnCluster) -> Construct:
        """The add-on, and before it the identity of its pods, which it does not take as an argument."""
        parent = Construct(self, "TrainingOperator")
        # What AmazonSageMakerHyperPodTrainingOperatorAccess allows, of this cluster alone.
        describe = Statement("DescribeNodes", ["sagemaker:DescribeClusterNode"], [hyperpod.attr_cluster_arn])
        role = self._kubernetes.pod_role(
            parent, "Role", ["aws-hyperpod"], "hp-training-operator-controller-manager", [describe]
        )
        self._kubernetes.addon(parent, "Addon", addons.TRAINING_OPERATOR, after=[role])
        return parent

    def _collector(self, metrics: MetricsWorkspace) -> Construct:
        """Prometheus as an agent, which finds trainings' pods and may write to the workspace, no more."""
        parent = Construct(self, "TrainingMetrics")
        role = self._kubernetes.pod_role(parent, "Role", [NAMESPACE], NAME, [metrics.to_write])
        wanted = collector_objects(self._kubernetes.settings, remote_write_url=metrics.remote_write_url)
        self._kubernetes.manifest(parent, "Objects", wanted, after=[role])
        return parent

    def _mlflow(self, mlflow: ManagedMlflow) -> Construct:
        """MLflow's address, and a service account whose pods may only log to it, in namespaces of jobs."""
        parent = Construct(self, "Mlflow")
        namespaces = job_namespaces(self._kubernetes.settings)
        role = self._kubernetes.pod_role(
            parent, "Role", namespaces, JOB_SERVICE_ACCOUNT, [mlflow.to_log_runs]
        )
        variables = {"MLFLOW_TRACKING_URI": mlflow.arn}
        objects = [
            found
            for namespace in namespaces
            for found in (
                kubernetes_object("v1", "ServiceAccount", JOB_SERVICE_ACCOUNT, namespace),
                kubernetes_object("v1", "ConfigMap", JOB_ENVIRONMENT, namespace, data=variables),
            )
        ]
        # A pod reads its role at its start, and the account is what lets it start.
        self._kubernetes.manifest(parent, "Objects", objects, after=[role])
        return parent
