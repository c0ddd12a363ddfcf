"""The EKS cluster and what goes with it when it is destroyed."""

from pathlib import Path
from typing import Any

from aws_cdk import Annotations, CfnOutput, Stack, Tags
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sagemaker as sagemaker

from config.eks_cluster import EksCluster, EksInstanceGroup
from config.kubernetes import NO_USERS, AccessEntry
from config.resource_names import job_namespaces
from config.storage import EFA_CLIENT_SHA256, EFA_CLIENT_URL
from config.studio_people import shared_uids
from constructs import Construct, IDependable
from constructs.eks.cluster_services import ClusterServices
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.nodes import NodePrerequisites, hyperpod_chart, nodes_ready, pod_interfaces
from constructs.monitoring.cost_budget import cost_budget
from constructs.nodes import node_roles
from constructs.nodes.instance_group import hyperpod_cluster, instance_group, volumes
from constructs.nodes.lifecycle_entry import lifecycle_entry
from constructs.policy.findings import acknowledge
from constructs.storage.hashed_upload import HashedUpload
from constructs.storage.log_group import log_group
from constructs.vpc.network import Network
from manifests import lustre
from manifests.charts import chart_folder
from manifests.objects import SYSTEM_NAMESPACE
from stacks.remaining_costs import remaining_costs
from stacks.storage_stack import StorageStack
from stacks.studio_stack import StudioStack

SCRIPTS = Path(__file__).parents[1] / "lifecycle" / "eks"
ON_CREATE = "on_create.sh"
"""Runs once on each new node before it joins."""
PODS_REACH_METADATA = "pods_reach_metadata"
"""Empty file beside ``ON_CREATE``; with it, nodes have no firewall rule against pods."""
LUSTRE_EFA = "lustre_efa"
"""File beside ``ON_CREATE`` with address and checksum of FSx's EFA client, which nodes then set up."""
LUSTRE_EFA_SCRIPT = SCRIPTS.with_name("slurm") / "set_up_lustre_efa.sh"


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
        **stack_arguments: Any,
    ) -> None:
        # Indentation would be a third of the template's limit of 1 MB.
        super().__init__(scope, construct_id, suppress_template_indentation=True, **stack_arguments)
        # Routes, endpoints and rules must exist while something is installed or removed over them.
        self.add_stack_dependency(storage)
        key = storage.key
        kubernetes = KubernetesCluster(self, settings=cluster, network=network, key=key)
        if not cluster.kubernetes.access:
            Annotations.of(self).add_warning_v2("hyperpod-esm2:no-users", NO_USERS)

        without_nodes = NodePrerequisites(self, kubernetes=kubernetes)
        try:
            folder = chart_folder("hyperpod")
        except ValueError as error:
            # An error of this stack alone: the others are still deployed.
            Annotations.of(self).add_error(str(error))
        else:
            hyperpod_chart(without_nodes, kubernetes, folder)

        files = Construct(self, "NodeFiles")
        # The training code is in its image.
        lifecycle = HashedUpload(
            files,
            "Lifecycle",
            artifact_bucket=storage.artifact_bucket,
            key=key,
            log=log_group(files, "Log", key=key),
            prefix=node_roles.LIFECYCLE_PREFIX,
            folder=SCRIPTS,
            extra_files=node_files(cluster),
        )
        entry, entry_uri = lifecycle_entry(files, lifecycle, cluster.region, ON_CREATE)
        common = node_roles.node_statements(
            self,
            cluster,
            network=network,
            prefixes=[node_roles.LIFECYCLE_PREFIX],
            repository=storage.image_repository,
            key=key,
        )
        log = log_group(self, "FunctionLog", key=key)
        interfaces = pod_interfaces(self, cluster, network.security_group, log)
        own = node_roles.eks_node_statements(self, network, kubernetes.arn)
        role = node_roles.node_role(self, "NodeRole", cluster, [*common, *own])
        hyperpod = self._hyperpod(cluster, network, kubernetes.arn, role, entry_uri, key)
        hyperpod.node.add_dependency(role, without_nodes, entry, interfaces)

        ready = nodes_ready(self, kubernetes, hyperpod, log)
        services = ClusterServices(
            self,
            kubernetes=kubernetes,
            hyperpod=hyperpod,
            lustre=storage.lustre,
            metrics=storage.metrics,
            mlflow=storage.mlflow,
            log=log,
        )
        services.node.add_dependency(ready)
        if studio:
            # The file system's claim is one of them.
            self._studio(studio, kubernetes).node.add_dependency(services)
        if cluster.budget:
            cost_budget(self, cluster, cluster.budget, storage.alerts)
        outputs = {
            "ClusterName": cluster.name,
            "ClusterArn": hyperpod.attr_cluster_arn,
            "KubeconfigCommand": f"aws eks update-kubeconfig --name {cluster.name} --region {cluster.region}",
            "LifecycleSourceS3Uri": lifecycle.s3_uri,
            "DataBucketName": storage.data_bucket.bucket_name,
            "ArtifactBucketName": lifecycle.bucket_name,
            "LustreFileSystemId": storage.lustre.file_system_id,
            "LustreMountName": storage.lustre.mount_name,
            "ImageUri": storage.image_repository.repository_uri,
            "BillsUntilTeardown": ", ".join(remaining_costs(cluster)),
        }
        for name, value in outputs.items():
            CfnOutput(self, name, value=value)

    def _hyperpod(
        self,
        cluster: EksCluster,
        network: Network,
        eks_arn: str,
        role: iam.Role,
        lifecycle_s3_uri: str,
        key: kms.IKey | None,
    ) -> sagemaker.CfnCluster:
        """Create nodes that HyperPod keeps healthy and EKS's control plane uses."""
        own: dict[str, Any] = {"orchestrator": {"eks": {"clusterArn": eks_arn}}}
        if cluster.autoscaling == "karpenter":
            own |= {
                "cluster_role": node_roles.autoscaling_role(self, "AutoscalingRole", key=key).role_arn,
                "auto_scaling": {"mode": "Enable", "autoScalerType": "Karpenter"},
            }
        groups = [
            instance_group(
                group,
                network,
                role,
                image_release_version=group.image_release_version,
                life_cycle_config={"sourceS3Uri": lifecycle_s3_uri, "onCreate": ON_CREATE},
                instance_storage_configs=volumes(group, key) or None,
                kubernetes_config=_kubernetes_config(group),
            )
            for group in cluster.instance_groups
        ]
        hyperpod = hyperpod_cluster(self, cluster, network, groups, **own)
        # AWS's policy for the training operator uses this tag to limit the nodes that it may look at.
        Tags.of(hyperpod).add("SageMaker", "true")
        if any(group.image_release_version for group in cluster.instance_groups):
            newer = "ImageReleaseVersion is newer than the library's own schema; cfn-lint has it"
            acknowledge(hyperpod, {"CloudFormation-Validate::F3002": newer})
        return hyperpod

    def _studio(self, studio: StudioStack, kubernetes: KubernetesCluster) -> Construct:
        """Create access entries of spaces' roles, for jobs in namespaces of jobs, and jobs for partitions."""
        made, settings = Construct(self, "Studio"), kubernetes.settings
        namespaces = job_namespaces(settings)
        for number, role in enumerate(studio.roles):
            # The same access as an editor of a namespace in the file; only the deployment knows the ARN.
            entry = AccessEntry.model_construct(
                principal_arn=role.role_arn, level="edit", namespaces=namespaces
            )
            kubernetes.access(made, f"Access{number}", entry)
        objects = [lustre.studio_program(), lustre.studio_service_account()]
        after: list[IDependable] = [kubernetes.manifest(made, "Program", objects)]
        if partitions := studio.partitions:
            account, statements = lustre.STUDIO_JOBS, partitions.worker_statements()
            after.append(kubernetes.pod_role(made, "Role", [SYSTEM_NAMESPACE], account, statements))
            queues = partitions.requests.queue_url, partitions.acknowledgements.queue_url
            name, job = "Queued", lustre.studio_queue_job(*queues, settings.region)
        else:
            name, job = "Shared", lustre.studio_shared_job(shared_uids(settings))
        kubernetes.manifest(made, name, [job], after=after)
        return made


def node_files(cluster: EksCluster) -> dict[str, str]:
    """Return the files beside ``ON_CREATE`` that the cluster file asks for."""
    files = {PODS_REACH_METADATA: ""} if cluster.kubernetes.pod_metadata_access else {}
    if cluster.storage.lustre.efa:
        files[LUSTRE_EFA] = f"{EFA_CLIENT_URL} {EFA_CLIENT_SHA256 or 'unknown'}\n"
        files[LUSTRE_EFA_SCRIPT.name] = LUSTRE_EFA_SCRIPT.read_text()
    return files


def _kubernetes_config(group: EksInstanceGroup) -> dict[str, Any] | None:
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in group.taints]
    found = {"labels": group.labels, "taints": taints}
    return {name: value for name, value in found.items() if value} or None
