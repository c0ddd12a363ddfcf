"""Resources that outlive clusters: file systems, buckets, images, metrics, runs, accounting, and a key."""

from typing import Any

from aws_cdk import CfnOutput, Duration, RemovalPolicy, Stack
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from config.cluster import Cluster
from config.resource_names import ResourceNames, artifact_bucket
from config.slurm_cluster import SlurmCluster
from config.storage import Removal
from constructs import Construct
from constructs.monitoring.alert_topic import AlertTopic
from constructs.monitoring.managed_mlflow import ManagedMlflow
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.storage.accounting_database import AccountingDatabase
from constructs.storage.encryption_key import encryption_key
from constructs.storage.file_systems import HomeFileSystem, LustreFileSystem, associate_bucket
from constructs.storage.private_bucket import access_log_bucket, private_bucket, removal_policy
from constructs.vpc.network import Network

KEPT_IMAGES = 20
"""At about 10 GB each; older ones are rebuilt from their commit."""
MIRRORED_TAGS = "dcgm-exporter-"
"""Prefix of tags of the image that `make mirror-downloads` stores beside the training image."""
KEPT_MIRRORED = 5
"""Earlier versions, for nodes that were not set up again since."""


class StorageStack(Stack):
    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: Cluster, network: Network, **kwargs: Any
    ) -> None:
        super().__init__(scope, construct_id, **kwargs)
        storage = cluster.storage
        self.key = encryption_key(
            self,
            "Key",
            setting=storage.kms,
            alias=ResourceNames(cluster).key_name,
            removal=removal_policy(_removal_of_key(cluster)),
        )
        self.lustre = LustreFileSystem(
            self,
            settings=storage.lustre,
            log_group_name=ResourceNames(cluster).lustre_log_group,
            network=network,
            key=self.key,
        )
        self.home = (
            HomeFileSystem(self, settings=storage.home, network=network, key=self.key)
            if storage.home
            else None
        )

        access_logs = access_log_bucket(self, "AccessLogs")
        self.data_bucket: s3.IBucket = (
            s3.Bucket.from_bucket_name(self, "Data", storage.data_bucket.existing)
            if storage.data_bucket.existing
            else private_bucket(
                self,
                "Data",
                key=self.key,
                access_logs=access_logs,
                noncurrent_days=storage.data_bucket.noncurrent_days,
                removal=removal_policy(storage.data_bucket.removal),
            )
        )
        self.artifact_bucket = private_bucket(
            self,
            "Artifacts",
            # HyperPod's managed policy lets nodes read scripts from buckets of this prefix.
            bucket_name=artifact_bucket(cluster, self.account),
            key=self.key,
            access_logs=access_logs,
            # It holds copies of this repository's files, which only people overwrite under the same name. A
            # kept bucket would have the same name as the next one.
            removal=RemovalPolicy.DESTROY,
        )
        # Both were kept with their link, and FSx refuses a second link of the same directory.
        is_linked = storage.lustre.existing and storage.data_bucket.existing
        if storage.data_bucket.lustre_path is not None and not is_linked:
            associate_bucket(
                self,
                lustre=self.lustre,
                path=storage.data_bucket.lustre_path,
                bucket=self.data_bucket,
                key=self.key,
                # It is useful only while both the file system and the bucket exist.
                removal=removal_policy(
                    "retain"
                    if storage.lustre.removal == storage.data_bucket.removal == "retain"
                    else "destroy"
                ),
            )
        self.image_repository = training_image_repository(self, cluster, self.key)
        self.alerts = self.metrics = self.mlflow = self.accounting_database = None
        common: dict[str, Any] = {"cluster": cluster, "key": self.key}
        if cluster.observability:
            self.alerts = AlertTopic(self, settings=cluster.observability, **common)
        if cluster.prometheus:
            self.metrics = MetricsWorkspace(self, alerts=self.alerts, **common)
        if mlflow := cluster.mlflow:
            self.mlflow = ManagedMlflow(self, settings=mlflow, access_logs=access_logs, **common)
        if isinstance(cluster, SlurmCluster) and (database := cluster.accounting_database):
            self.accounting_database = AccountingDatabase(
                self, settings=database, network=network, key=self.key
            )
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
    """Return the key's removal; retained data need the key."""
    storage = cluster.storage
    database = cluster.accounting_database if isinstance(cluster, SlurmCluster) else None
    kept = {part.removal for part in (storage.lustre, storage.data_bucket, storage.home, database) if part}
    return "retain" if "retain" in kept else "destroy"


def training_image_repository(scope: Construct, cluster: Cluster, key: kms.IKey | None) -> ecr.Repository:
    """Create the ECR repository ``<cluster name>/training`` of images.

    A tag is never moved, and every push is scanned. Nodes without a way to the internet find copies of the
    other images that they run in it.

    It goes with its stack, images included: they can be built again, and a repository that was kept would
    collide with the next one by name.
    """
    return ecr.Repository(
        Construct(scope, "TrainingImage"),
        "Repository",
        repository_name=ResourceNames(cluster).image_repository,
        image_tag_mutability=ecr.TagMutability.IMMUTABLE,
        image_scan_on_push=True,
        encryption=ecr.RepositoryEncryption.KMS if key else ecr.RepositoryEncryption.AES_256,
        encryption_key=key,
        removal_policy=RemovalPolicy.DESTROY,
        empty_on_delete=True,
        lifecycle_rules=[
            # First: "An image that matches the tagging requirements of a rule cannot be expired by a rule
            # with a lower priority" (ECR user guide), here for being among the oldest.
            ecr.LifecycleRule(
                rule_priority=1, tag_prefix_list=[MIRRORED_TAGS], max_image_count=KEPT_MIRRORED
            ),
            ecr.LifecycleRule(
                rule_priority=2, tag_status=ecr.TagStatus.UNTAGGED, max_image_age=Duration.days(7)
            ),
            ecr.LifecycleRule(rule_priority=3, tag_status=ecr.TagStatus.ANY, max_image_count=KEPT_IMAGES),
        ],
    )
