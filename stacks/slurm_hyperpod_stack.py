"""The Slurm cluster and what goes with it when it is destroyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3

from config.cluster import SlurmCluster as Settings
from constructs import Construct
from constructs.accounting_database import AccountingDatabase
from constructs.cost_budget import CostBudget
from constructs.hashed_upload import HashedUpload
from constructs.instance_role import InstanceRole, NodeResources
from constructs.log_group import log_group
from constructs.metrics_workspace import MetricsWorkspace
from constructs.network import Network
from constructs.run_as_document import RunAsDocument
from constructs.slurm_cluster import HOME_MOUNT_PATH, Mounts, SlurmCluster
from constructs.training_image_repository import TrainingImageRepository
from stacks.remaining_costs import remaining_costs
from stacks.storage_stack import StorageStack
from stacks.tags import CLUSTER_TAG

REPOSITORY = Path(__file__).parents[1]
UPLOAD_LOG_DAYS = 30
ROLES = ("controller", "login", "worker")


class SlurmHyperPodStack(Stack):
    """Nodes, their roles and scripts, image repository, metrics workspace, session document and budget."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Settings,
        network: Network,
        storage: StorageStack,
        **stack_arguments: Any,
    ) -> None:
        super().__init__(scope, construct_id, **stack_arguments)
        # Also for what no property refers to: the data repository association.
        self.add_stack_dependency(storage)
        key = storage.key
        repository = TrainingImageRepository(self, "TrainingImage", cluster_name=cluster.name, key=key)
        metrics = (
            MetricsWorkspace(self, "Metrics", cluster_name=cluster.name, key=key)
            if cluster.prometheus
            else None
        )
        artifacts = self._artifact_bucket(storage)
        database = self._accounting_database(cluster, network, storage)
        zones = {group.availability_zone_id for group in cluster.instance_groups}
        resources = NodeResources(
            cluster_name=cluster.name,
            vpc=network.vpc,
            subnets=list({network.subnet(zone).subnet_id: network.subnet(zone) for zone in zones}.values()),
            security_group=network.security_group,
            artifact_bucket_name=artifacts.bucket_name,
            repository=repository.repository,
            key=key,
            workspace=metrics.workspace if metrics else None,
        )
        roles = {
            role: InstanceRole(
                self,
                f"{role.capitalize()}Role",
                resources=resources,
                database_secret=database.secret if database and role == "controller" else None,
            )
            for role in ROLES
            if any(group.role == role for group in cluster.instance_groups)
        }
        upload_log = logs.LogGroup.from_log_group_arn(
            self,
            "UploadLogGroup",
            log_group(self, "UploadLog", key=key, retention_days=UPLOAD_LOG_DAYS).attr_arn,
        )
        lifecycle = HashedUpload(
            self,
            "Lifecycle",
            bucket=artifacts,
            prefix="lifecycle",
            folder=REPOSITORY / "lifecycle" / "slurm",
            extra_files={"settings.env": _node_settings(cluster)},
            log_group=upload_log,
        )
        workloads = HashedUpload(
            self,
            "Workloads",
            bucket=artifacts,
            prefix="workloads",
            folder=REPOSITORY / "workloads",
            log_group=upload_log,
        )
        self.cluster = SlurmCluster(
            self,
            "Cluster",
            settings=cluster,
            network=network,
            roles=roles,
            lifecycle_s3_uri=lifecycle.s3_uri,
            mounts=Mounts(
                lustre_dns_name=storage.lustre.dns_name,
                lustre_mount_name=storage.lustre.mount_name,
                lustre_mount_path=storage.lustre.mount_path,
                home_dns_name=storage.home.dns_name if storage.home else None,
            ),
            key=key,
            database=database,
            depends_on=[lifecycle],
        )
        session = RunAsDocument(self, "Session", cluster_name=cluster.name, key=key)
        if cluster.budget:
            CostBudget(self, "Budget", cluster_name=cluster.name, tag=CLUSTER_TAG, budget=cluster.budget)
        self._outputs(
            ClusterName=cluster.name,
            ClusterArn=self.cluster.resource.attr_cluster_arn,
            ConnectCommand=f"make connect{self._cluster_argument()}",
            ApplyLifecycleCommand=f"make apply-lifecycle{self._cluster_argument()}",
            LifecycleSourceS3Uri=lifecycle.s3_uri,
            WorkloadSourceS3Uri=workloads.s3_uri,
            DataBucketName=storage.data_bucket.bucket_name,
            ArtifactBucketName=artifacts.bucket_name,
            LustreFileSystemId=storage.lustre.file_system_id,
            LustreMountName=storage.lustre.mount_name,
            ImageUri=repository.repository.repository_uri,
            SessionDocumentName=session.name,
            BillsUntilTeardown=", ".join(remaining_costs(cluster)),
        )

    def _accounting_database(
        self, cluster: Settings, network: Network, storage: StorageStack
    ) -> AccountingDatabase | None:
        """In the storage stack: accounting outlives the cluster, and the next one finds it there."""
        if cluster.accounting_database is None:
            return None
        return AccountingDatabase(
            storage,
            "AccountingDatabase",
            settings=cluster.accounting_database,
            vpc=network.vpc,
            subnets=network.database_subnets,
            cluster_security_group=network.security_group,
            key=storage.key,
        )

    def _artifact_bucket(self, storage: StorageStack) -> s3.IBucket:
        """The bucket by its name, which is known, rather than by a reference to the other stack."""
        resource = storage.artifact_bucket.node.default_child
        assert isinstance(resource, s3.CfnBucket) and resource.bucket_name
        return s3.Bucket.from_bucket_attributes(
            self, "ArtifactBucket", bucket_name=resource.bucket_name, encryption_key=storage.key
        )

    def _cluster_argument(self) -> str:
        """What a make target needs to know that it is this cluster; nothing for the default file."""
        file = self.node.try_get_context("cluster")
        return f" CLUSTER={file}" if file else ""

    def _outputs(self, **values: str) -> None:
        for name, value in values.items():
            CfnOutput(self, name, value=value)


def _node_settings(cluster: Settings) -> str:
    """What lifecycle scripts must know of the cluster file. Values of the deployment would have no hash."""
    home = HOME_MOUNT_PATH if cluster.storage.home else ""
    return f"LUSTRE_MOUNT_PATH={cluster.storage.lustre.mount_path}\nHOME_MOUNT_PATH={home}\n"
