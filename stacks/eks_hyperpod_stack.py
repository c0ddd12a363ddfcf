"""The EKS cluster and what goes with it when it is destroyed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aws_cdk import Annotations, CfnOutput, Stack
from aws_cdk import aws_iam as iam

from config.eks_cluster import EksCluster
from config.kubernetes import NO_USERS, AccessEntry
from config.resource_names import job_namespaces
from config.studio_people import shared_uids
from constructs import Construct, IDependable
from constructs.eks.cluster_services import ClusterServices
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.node_prerequisites import HyperPodChart, NodePrerequisites
from constructs.eks.node_waiter import NodeWaiter, PodInterfaces
from constructs.monitoring.cost_budget import CostBudget
from constructs.nodes.eks_hyperpod_cluster import EksHyperPodCluster
from constructs.nodes.node_files import EksNodeFiles
from constructs.nodes.node_roles import (
    LIFECYCLE_PREFIX,
    autoscaling_role,
    eks_node_statements,
    node_role,
    node_statements,
)
from constructs.storage.log_group import log_group
from constructs.studio.studio_partitions import StudioPartitions
from constructs.vpc.network import Network
from manifests import studio_jobs
from manifests.charts import chart_folder
from manifests.objects import SYSTEM_NAMESPACE
from stacks.remaining_costs import remaining_costs
from stacks.storage_stack import StorageStack
from stacks.studio_stack import StudioStack

DEFAULT_CLUSTER = "clusters/eks.yaml"
"""The file that app and make take when none is named."""


class EksHyperPodStack(Stack):
    """Control plane, nodes, and what runs on them: what can be destroyed over night.

    In three phases, each of which depends on all of the one before, and is deleted before it: what needs no
    nodes, the nodes, and what needs them.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: EksCluster,
        network: Network,
        storage: StorageStack,
        studio: StudioStack | None,
        chart_stand_ins: Path | None = None,
        **stack_arguments: Any,
    ) -> None:
        # Of its 1 MB of template, indentation would be a third.
        super().__init__(scope, construct_id, suppress_template_indentation=True, **stack_arguments)
        # Routes, endpoints and rules are there as long as something is installed over them, or removed.
        self.add_stack_dependency(storage)
        key = storage.key
        kubernetes = KubernetesCluster(self, "Kubernetes", settings=cluster, network=network, key=key)
        if not cluster.kubernetes.access:
            Annotations.of(self).add_warning_v2("hyperpod-esm2:no-users", NO_USERS)

        without_nodes = NodePrerequisites(self, "WithoutNodes", kubernetes=kubernetes)
        try:
            folder = chart_folder("hyperpod", stand_ins=chart_stand_ins)
        except ValueError as error:
            # Only this stack fails; a deployment of the others continues.
            Annotations.of(self).add_error(str(error))
        else:
            HyperPodChart(without_nodes, "Chart", kubernetes=kubernetes, folder=folder)

        files = EksNodeFiles(self, "NodeFiles", artifact_bucket=storage.artifact_bucket, key=key)
        common = node_statements(
            self,
            cluster_name=cluster.name,
            network=network,
            bucket_name=files.lifecycle.bucket_name,
            prefixes=[LIFECYCLE_PREFIX],
            repository=storage.image_repository,
            key=key,
        )
        log = log_group(self, "FunctionLog", key=key)
        interfaces = PodInterfaces(
            self, "PodInterfaces", settings=cluster, security_group=network.security_group, log=log
        )
        hyperpod = EksHyperPodCluster(
            self,
            "Cluster",
            settings=cluster,
            network=network,
            eks_cluster_arn=kubernetes.arn,
            role=node_role(
                self,
                "NodeRole",
                cluster.name,
                [*common, *eks_node_statements(self, network, kubernetes.arn)],
            ),
            autoscaling_role=(
                autoscaling_role(self, "AutoscalingRole", key=key)
                if cluster.autoscaling == "karpenter"
                else None
            ),
            lifecycle_s3_uri=files.lifecycle.s3_uri,
            key=key,
            depends_on=[without_nodes, files.lifecycle, interfaces.resource],
        )

        waiter = NodeWaiter(self, "NodeWaiter", kubernetes=kubernetes, hyperpod=hyperpod, log=log)
        services = ClusterServices(
            self,
            "WithNodes",
            kubernetes=kubernetes,
            hyperpod=hyperpod,
            lustre=storage.lustre,
            metrics=storage.metrics,
            mlflow=storage.mlflow,
            log=log,
        )
        services.node.add_dependency(waiter.ready)
        if studio:
            work = StudioOnKubernetes(
                self,
                "Studio",
                kubernetes=kubernetes,
                roles=studio.roles,
                partitions=studio.partitions,
            )
            # The file system's claim is one of them.
            work.node.add_dependency(services)
        if cluster.budget:
            CostBudget(self, "Budget", cluster=cluster, budget=cluster.budget, alerts=storage.alerts)
        self._outputs(
            ClusterName=cluster.name,
            ClusterArn=hyperpod.arn,
            KubeconfigCommand=f"aws eks update-kubeconfig --name {cluster.name} --region {cluster.region}",
            LifecycleSourceS3Uri=files.lifecycle.s3_uri,
            DataBucketName=storage.data_bucket.bucket_name,
            ArtifactBucketName=files.lifecycle.bucket_name,
            LustreFileSystemId=storage.lustre.file_system_id,
            LustreMountName=storage.lustre.mount_name,
            ImageUri=storage.image_repository.repository_uri,
            BillsUntilTeardown=", ".join(remaining_costs(cluster)),
        )

    def _outputs(self, **values: str) -> None:
        for name, value in values.items():
            CfnOutput(self, name, value=value)


class StudioOnKubernetes(Construct):
    """Jobs that make partitions, and access entries of spaces' roles, for jobs in the namespaces of jobs."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        roles: Sequence[iam.IRole],
        partitions: StudioPartitions | None,
    ) -> None:
        super().__init__(scope, construct_id)
        settings = kubernetes.settings
        namespaces = job_namespaces(settings)
        for number, role in enumerate(roles):
            # As for those whom the file lets edit in a namespace; the ARN is known at the deployment.
            entry = AccessEntry.model_construct(
                principal_arn=role.role_arn, level="edit", namespaces=namespaces
            )
            kubernetes.access(self, f"Access{number}", entry)

        objects = [studio_jobs.program(), studio_jobs.service_account()]
        after: list[IDependable] = [kubernetes.manifest(self, "Program", objects)]
        if partitions is None:
            kubernetes.manifest(self, "Shared", [studio_jobs.shared_job(shared_uids(settings))], after=after)
            return
        statements = partitions.worker_statements()
        after.append(kubernetes.pod_role(self, "Role", [SYSTEM_NAMESPACE], studio_jobs.NAME, statements))
        queues = partitions.requests.queue_url, partitions.acknowledgements.queue_url
        kubernetes.manifest(self, "Queued", [studio_jobs.queue_job(*queues, settings.region)], after=after)
