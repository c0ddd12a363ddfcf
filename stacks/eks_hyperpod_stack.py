"""EKS cluster, with everything that is deleted when it is destroyed."""

from pathlib import Path
from typing import Any

from aws_cdk import Annotations, CfnOutput, Stack, Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker

from config.eks_cluster import EksCluster, EksInstanceGroup, has_slices
from config.kubernetes import NO_USERS, version_warning
from config.proxy_environment import proxy_environment
from config.resource_names import ResourceNames
from config.storage import EFA_CLIENT_SHA256, EFA_CLIENT_URL
from constructs import Construct, IDependable
from constructs.eks.cluster_services import ClusterServices
from constructs.eks.gpu_operator import GpuOperator
from constructs.eks.hyperpod_chart import HyperPodChart, agent_role
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.nodes import NodePrerequisites, NodeWaiter, PodInterfaces
from constructs.eks.studio_access import StudioAccess
from constructs.monitoring.cost_budget import CostBudget
from constructs.nodes import node_roles
from constructs.nodes.instance_group import Group, HyperPodCluster, instance_group, volumes
from constructs.nodes.lifecycle_entry import lifecycle_entry
from constructs.policy.existing_role import existing_role
from constructs.policy.findings import acknowledge
from constructs.storage.hashed_upload import HashedUpload, UploadedFiles, UploadTarget
from constructs.storage.log_group import log_group
from constructs.vpc.network import Network
from manifests.charts import chart_folder
from manifests.gpu_operator import CHART as GPU_OPERATOR
from stacks.remaining_costs import remaining_costs
from stacks.storage_stack import StorageStack
from stacks.studio_stack import StudioStack

SCRIPTS = Path(__file__).parents[1] / "lifecycle" / "eks"
PROXY = "proxy"
"""File beside ``ON_CREATE`` with the variables of the HTTP proxy, which containerd and kubelet then use."""
ON_CREATE = "on_create.sh"
"""Script that runs once on each new node before it joins."""
PODS_REACH_METADATA = "pods_reach_metadata"
"""Empty file beside ``ON_CREATE``; with it, nodes have no firewall rule against pods."""
LUSTRE_EFA = "lustre_efa"
"""File beside ``ON_CREATE`` with address and checksum of FSx's EFA client, which nodes then set up."""
LUSTRE_EFA_SCRIPT = SCRIPTS.with_name("slurm") / "set_up_lustre_efa.sh"
"""Script that sets up FSx's EFA client, the same as on Slurm."""


class EksHyperPodStack(Stack):
    """Control plane, nodes, and the services on them, which can be destroyed overnight.

    An existing EKS cluster stays as it is: the stack adds nodes, and objects and access of its own.

    The resources are created in three phases: those that need no nodes, the nodes, and those that need nodes.
    Each phase depends on the whole phase before it, and is deleted before it.
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
        **stack_arguments: Any,
    ) -> None:
        # Indentation would use a third of the template's limit of 1 MB.
        super().__init__(scope, construct_id, suppress_template_indentation=True, **stack_arguments)
        # Routes, endpoints and rules of the network must exist during installations and removals.
        self.add_stack_dependency(storage)
        key = storage.key
        assert storage.lustre, "a rule of cluster files requires it"
        lustre = storage.lustre
        kubernetes = KubernetesCluster(
            self,
            "Kubernetes",
            settings=cluster,
            network=network,
            key=key,
            image_repository=storage.image_repository.repository_uri,
        )
        exists = kubernetes.is_existing
        if not (cluster.kubernetes.admitted or exists):
            Annotations.of(self).add_warning_v2("hyperpod-esm2:no-users", NO_USERS)
        if not exists and (warning := version_warning(cluster.kubernetes.version)):
            Annotations.of(self).add_warning_v2("hyperpod-esm2:kubernetes-version", warning)

        without_nodes = NodePrerequisites(self, "WithoutNodes", kubernetes=kubernetes)
        if exists:
            # The chart is installed already, and its agent needs a role for this cluster's log groups.
            agent_role(without_nodes, "HealthAgent", kubernetes=kubernetes)
        else:
            self._chart(without_nodes, kubernetes)

        # The training code is not uploaded, because it is in the image.
        files = Construct(self, "NodeFiles")
        upload_log = log_group(files, "Log", key=key)
        lifecycle = HashedUpload(
            files,
            "Lifecycle",
            target=UploadTarget(storage.artifact_bucket, key, upload_log),
            prefix=node_roles.LIFECYCLE_PREFIX,
            files=UploadedFiles(SCRIPTS, extra=node_files(cluster)),
        )
        entry = lifecycle_entry(
            files, "Current", scripts=lifecycle, region=cluster.region, script=ON_CREATE
        )
        common = node_roles.node_statements(
            self,
            cluster,
            network=network,
            prefixes=[node_roles.LIFECYCLE_PREFIX],
            repository=storage.image_repository,
            key=key,
        )
        log = log_group(self, "FunctionLog", key=key)
        first: list[IDependable] = [without_nodes, entry.upload]
        # An existing EKS cluster has interfaces of others, and its network outlives the nodes.
        if not exists:
            interfaces = PodInterfaces(
                self,
                "PodInterfaces",
                settings=cluster,
                security_group=network.security_group,
                log=log,
            )
            first.append(interfaces.resource)
        own = node_roles.eks_node_statements(self, network, kubernetes.arn)
        created: list[iam.Role] = []
        if not all(group.execution_role for group in cluster.instance_groups):
            nodes = node_roles.NodeRole(
                self, "NodeRole", cluster=cluster, statements=[*common, *own]
            )
            created = [nodes.role]
        groups = [
            _instance_group(
                group,
                network,
                node_roles.existing_node_role(self, f"ExistingRole-{group.name}", group=group)
                or created[0],
                entry.source_s3_uri,
                key,
            )
            for group in cluster.instance_groups
        ]
        hyperpod = self._hyperpod(cluster, network, groups, kubernetes.arn, key)
        hyperpod.node.add_dependency(*created, *first)

        waiter = NodeWaiter(self, "NodeWaiter", kubernetes=kubernetes, hyperpod=hyperpod, log=log)
        services = ClusterServices(
            self,
            "WithNodes",
            kubernetes=kubernetes,
            hyperpod=hyperpod,
            lustre=lustre,
            metrics=storage.metrics,
            mlflow=storage.mlflow,
            log=log,
        )
        services.node.add_dependency(waiter.ready)
        if studio:
            access = StudioAccess(
                self,
                "Studio",
                kubernetes=kubernetes,
                roles=studio.roles,
                partitions=studio.partitions,
            )
            # Its jobs need the file system's claim, which is one of the services.
            access.node.add_dependency(services)
        if cluster.budget:
            CostBudget(
                self, "Budget", cluster=cluster, budget=cluster.budget, alerts=storage.alerts
            )
        eks_name = ResourceNames(cluster).kubernetes_cluster
        outputs = {
            "ClusterName": cluster.name,
            "ClusterArn": hyperpod.attr_cluster_arn,
            "KubeconfigCommand": (
                f"aws eks update-kubeconfig --name {eks_name} --region {cluster.region}"
            ),
            "LifecycleSourceS3Uri": lifecycle.s3_uri,
            "DataBucketName": storage.data_bucket.bucket_name,
            "ArtifactBucketName": lifecycle.bucket_name,
            "LustreFileSystemId": lustre.file_system_id,
            "LustreMountName": lustre.mount_name,
            "ImageUri": storage.image_repository.repository_uri,
            "BillsUntilTeardown": ", ".join(remaining_costs(cluster)),
        }
        for name, value in outputs.items():
            CfnOutput(self, name, value=value)

    def _chart(self, scope: Construct, kubernetes: KubernetesCluster) -> None:
        """Install HyperPod's chart, and for divided GPUs NVIDIA's operator."""
        try:
            folder = chart_folder("hyperpod")
            operator = chart_folder(GPU_OPERATOR) if has_slices(kubernetes.settings) else None
        except ValueError as error:
            # The error is an annotation of this stack, so that the other stacks can still be deployed.
            Annotations.of(self).add_error(str(error))
        else:
            HyperPodChart(scope, "Chart", kubernetes=kubernetes, folder=folder)
            if operator is not None:
                GpuOperator(scope, "GpuOperator", kubernetes=kubernetes, folder=operator)

    def _hyperpod(
        self,
        cluster: EksCluster,
        network: Network,
        groups: list[Group],
        eks_arn: str,
        key: kms.IKey | None,
    ) -> sagemaker.CfnCluster:
        """Create the HyperPod cluster that provides the control plane with nodes."""
        properties: dict[str, Any] = {"orchestrator": {"eks": {"clusterArn": eks_arn}}}
        if cluster.autoscaling == "karpenter":
            role: iam.IRole
            if cluster.autoscaling_role:
                role = existing_role(self, "AutoscalingRole", role=cluster.autoscaling_role)
            else:
                role = node_roles.autoscaling_role(self, "AutoscalingRole", key=key)
            properties["cluster_role"] = role.role_arn
            properties["auto_scaling"] = {"mode": "Enable", "autoScalerType": "Karpenter"}
        if cluster.managed_memory_percent:
            properties["tiered_storage_config"] = {
                "mode": "Enable",
                "instanceMemoryAllocationPercentage": cluster.managed_memory_percent,
            }
        hyperpod = HyperPodCluster(
            self, "Cluster", settings=cluster, network=network, groups=groups, **properties
        ).resource
        # AWS's policy for the training operator limits the nodes that it may describe by this tag.
        Tags.of(hyperpod).add("SageMaker", "true")
        if any(group.image_release_version for group in cluster.instance_groups):
            newer = "ImageReleaseVersion is newer than the library's own schema; cfn-lint's schema has it"
            acknowledge(hyperpod, {"CloudFormation-Validate::F3002": newer})
        return hyperpod


def _instance_group(
    group: EksInstanceGroup,
    network: Network,
    role: iam.IRole,
    lifecycle_s3_uri: str,
    key: kms.IKey | None,
) -> Group:
    return instance_group(
        group,
        network,
        role,
        image_release_version=group.image_release_version,
        life_cycle_config={"sourceS3Uri": lifecycle_s3_uri, "onCreate": ON_CREATE},
        instance_storage_configs=volumes(group, key) or None,
        kubernetes_config=_kubernetes_config(group),
    )


def node_files(cluster: EksCluster) -> dict[str, str]:
    """Return the files beside ``ON_CREATE`` that the cluster file requires, as texts by name."""
    files: dict[str, str] = {}
    if cluster.kubernetes.pod_metadata_access:
        files[PODS_REACH_METADATA] = ""
    if cluster.storage.lustre and cluster.storage.lustre.efa:
        files[LUSTRE_EFA] = f"{EFA_CLIENT_URL} {EFA_CLIENT_SHA256 or 'unknown'}\n"
        files[LUSTRE_EFA_SCRIPT.name] = LUSTRE_EFA_SCRIPT.read_text()
    if variables := proxy_environment(cluster):
        files[PROXY] = "".join(f"{name}={value}\n" for name, value in sorted(variables.items()))
    return files


def _kubernetes_config(group: EksInstanceGroup) -> dict[str, Any] | None:
    """Return labels and taints of a group's nodes; None if there are none."""
    config: dict[str, Any] = {}
    if group.node_labels:
        config["labels"] = group.node_labels
    if group.taints:
        config["taints"] = [
            {"key": taint.key, "value": taint.value, "effect": taint.effect}
            for taint in group.taints
        ]
    return config or None
