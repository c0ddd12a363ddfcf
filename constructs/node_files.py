"""What nodes read from S3: the scripts that set them up, and the training code."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3

from config.cluster import SlurmCluster
from config.node_settings import HOME_MOUNT_PATH
from constructs import Construct
from constructs.hashed_upload import HashedUpload
from constructs.log_group import log_group

REPOSITORY = Path(__file__).parents[1]
LOG_DAYS = 30


class NodeFiles(Construct):
    """Lifecycle scripts with the settings of the cluster file, and ``workloads/``, in the artifact bucket."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: SlurmCluster,
        artifact_bucket: s3.IBucket,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, construct_id)
        resource = artifact_bucket.node.default_child
        assert isinstance(resource, s3.CfnBucket) and resource.bucket_name
        self.bucket_name = resource.bucket_name
        # By its name, which is known, rather than by a reference to the other stack.
        bucket = s3.Bucket.from_bucket_attributes(
            self, "Bucket", bucket_name=self.bucket_name, encryption_key=key
        )
        log = log_group(self, "Log", key=key, retention_days=LOG_DAYS)
        log_reference = logs.LogGroup.from_log_group_arn(self, "LogReference", log.attr_arn)
        self.lifecycle = HashedUpload(
            self,
            "Lifecycle",
            bucket=bucket,
            prefix="lifecycle",
            folder=REPOSITORY / "lifecycle" / "slurm",
            extra_files={"settings.env": _settings(cluster)},
            log_group=log_reference,
        )
        self.workloads = HashedUpload(
            self,
            "Workloads",
            bucket=bucket,
            prefix="workloads",
            folder=REPOSITORY / "workloads",
            log_group=log_reference,
        )


def _settings(cluster: SlurmCluster) -> str:
    """What the scripts must know of the cluster file. Values of the deployment would have no hash."""
    home = HOME_MOUNT_PATH if cluster.storage.home else ""
    return f"LUSTRE_MOUNT_PATH={cluster.storage.lustre.mount_path}\nHOME_MOUNT_PATH={home}\n"
