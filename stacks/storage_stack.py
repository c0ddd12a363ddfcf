"""Resources that outlive clusters: file systems, buckets, images, metrics, runs, accounting, and a key."""

from typing import Any

from aws_cdk import CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_s3 as s3

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.resource_names import ResourceNames, artifact_bucket
from config.slurm_cluster import SlurmCluster
from config.storage import Removal
from constructs import Construct
from constructs.monitoring.alert_topic import AlertTopic
from constructs.monitoring.managed_mlflow import ManagedMlflow
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.storage.accounting_database import AccountingDatabase
from constructs.storage.encryption_key import encryption_key
from constructs.storage.file_systems import DataAssociation, HomeFileSystem, LustreFileSystem
from constructs.storage.image_repository import ImageRepository
from constructs.storage.private_bucket import access_log_bucket, private_bucket, removal_policy
from constructs.vpc.network import Network
from manifests.public_images import PUBLIC_IMAGES, takes_copies


class StorageStack(Stack):
    """Storage of a cluster, and the services that hold its metrics and runs."""

    data_bucket: s3.IBucket
    lustre: LustreFileSystem | None
    home: HomeFileSystem | None
    """File system of home directories."""
    alerts: AlertTopic | None
    """Topic of alerts and alarms."""
    metrics: MetricsWorkspace | None
    """Prometheus workspace."""
    mlflow: ManagedMlflow | None
    accounting_database: AccountingDatabase | None
    """Database of Slurm's accounting."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Cluster,
        network: Network,
        **stack_arguments: Any,
    ) -> None:
        super().__init__(scope, construct_id, **stack_arguments)
        storage = cluster.storage
        names = ResourceNames(cluster)
        self.key = encryption_key(
            self,
            "Key",
            setting=storage.kms,
            alias=names.key_name,
            removal=removal_policy(_removal_of_key(cluster)),
        )
        self.lustre = None
        if storage.lustre:
            self.lustre = LustreFileSystem(
                self,
                "Lustre",
                settings=storage.lustre,
                log_group_name=names.lustre_log_group,
                network=network,
                key=self.key,
            )
        self.home = None
        if storage.home:
            self.home = HomeFileSystem(
                self, "Home", settings=storage.home, network=network, key=self.key
            )

        access_logs = access_log_bucket(self, "AccessLogs")
        if storage.data_bucket.existing:
            self.data_bucket = s3.Bucket.from_bucket_name(
                self, "Data", storage.data_bucket.existing
            )
        else:
            self.data_bucket = private_bucket(
                self,
                "Data",
                key=self.key,
                access_logs=access_logs,
                noncurrent_days=storage.data_bucket.noncurrent_days,
                removal=removal_policy(storage.data_bucket.removal),
            )
        self.artifact_bucket = private_bucket(
            self,
            "Artifacts",
            # HyperPod's managed policy lets nodes read scripts from buckets of this prefix.
            bucket_name=artifact_bucket(cluster, self.account),
            key=self.key,
            access_logs=access_logs,
            # It contains only copies of this repository's files, and the name of a retained bucket would
            # collide with that of the next one.
            removal=RemovalPolicy.DESTROY,
        )
        # If both exist, they were retained with their association, and FSx refuses a second one for the same
        # path.
        lustre = storage.lustre
        is_linked = lustre and lustre.existing and storage.data_bucket.existing
        if lustre and self.lustre and storage.data_bucket.lustre_path and not is_linked:
            both_are_retained = lustre.removal == storage.data_bucket.removal == "retain"
            DataAssociation(
                self,
                "DataAssociation",
                lustre=self.lustre,
                path=storage.data_bucket.lustre_path,
                bucket=self.data_bucket,
                key=self.key,
                # The association is useful only while both the file system and the bucket exist.
                removal=removal_policy("retain" if both_are_retained else "destroy"),
            )
        takes_images = isinstance(cluster, EksCluster) and takes_copies(cluster)
        images = ImageRepository(
            self,
            "TrainingImage",
            repository_name=names.image_repository,
            key=self.key,
            mirrored=[image.name for image in PUBLIC_IMAGES] if takes_images else [],
        )
        self.image_repository = images.repository
        self.alerts = None
        if cluster.observability:
            self.alerts = AlertTopic(
                self, "Alerts", name=cluster.name, settings=cluster.observability, key=self.key
            )
        self.metrics = None
        if cluster.prometheus:
            self.metrics = MetricsWorkspace(
                self,
                "Metrics",
                cluster=cluster,
                log_group_name=names.metrics_log_group,
                key=self.key,
                alerts=self.alerts,
            )
        self.mlflow = None
        if cluster.mlflow:
            self.mlflow = ManagedMlflow(
                self,
                "Mlflow",
                name=cluster.name,
                settings=cluster.mlflow,
                key=self.key,
                access_logs=access_logs,
            )
        self.accounting_database = None
        database = cluster.accounting_database if isinstance(cluster, SlurmCluster) else None
        if database:
            self.accounting_database = AccountingDatabase(
                self,
                "AccountingDatabase",
                settings=database,
                cluster_name=cluster.name,
                network=network,
                key=self.key,
            )
        if self.lustre:
            CfnOutput(self, "LustreFileSystemId", value=self.lustre.file_system_id)
        CfnOutput(self, "DataBucketName", value=self.data_bucket.bucket_name)
        CfnOutput(self, "ArtifactBucketName", value=self.artifact_bucket.bucket_name)
        if self.home:
            CfnOutput(self, "HomeFileSystemId", value=self.home.file_system_id)
        if self.mlflow:
            CfnOutput(self, "MlflowArn", value=self.mlflow.arn)
        if self.key:
            CfnOutput(self, "KeyArn", value=self.key.key_arn)


def _removal_of_key(cluster: Cluster) -> Removal:
    """Return the key's removal; the key is retained if any data under it are."""
    storage = cluster.storage
    database = cluster.accounting_database if isinstance(cluster, SlurmCluster) else None
    kept = {
        part.removal
        for part in (storage.lustre, storage.data_bucket, storage.home, database)
        if part
    }
    return "retain" if "retain" in kept else "destroy"
