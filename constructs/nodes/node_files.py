"""What nodes read from S3: the scripts that set them up, and the training code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3

from config.node_settings import node_settings_text
from config.slurm_cluster import SlurmCluster
from constructs import Construct
from constructs.nodes.node_roles import LIFECYCLE_PREFIX, WORKLOAD_PREFIX
from constructs.storage.hashed_upload import HashedUpload, bucket_by_name
from constructs.storage.log_group import log_group

REPOSITORY = Path(__file__).parents[2]
EKS_SCRIPTS = REPOSITORY / "lifecycle" / "eks"
LOG_DAYS = 30
SETTINGS = "settings.json"
"""Of the cluster file, and so a part of the scripts' hash."""
DEPLOYMENT = "deployment.json"


class EksNodeFiles(Construct):
    """Lifecycle scripts of EKS in the artifact bucket. The training code is in its image."""

    def __init__(
        self, scope: Construct, construct_id: str, *, artifact_bucket: s3.IBucket, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        self.bucket_name, bucket = bucket_by_name(self, "Bucket", artifact_bucket, key)
        log = log_group(self, "Log", key=key, retention_days=LOG_DAYS)
        self.lifecycle = HashedUpload(
            self,
            "Lifecycle",
            bucket=bucket,
            prefix=LIFECYCLE_PREFIX,
            folder=EKS_SCRIPTS,
            log_group=logs.LogGroup.from_log_group_arn(self, "LogReference", log.attr_arn),
        )


class NodeFiles(Construct):
    """Lifecycle scripts with what they must know, and ``workloads/``, in the artifact bucket."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: SlurmCluster,
        artifact_bucket: s3.IBucket,
        key: kms.IKey | None,
        remote_write_url: str | None,
        mlflow: Mapping[str, str] | None,
        studio: Mapping[str, str | None] | None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.bucket_name, bucket = bucket_by_name(self, "Bucket", artifact_bucket, key)
        log = log_group(self, "Log", key=key, retention_days=LOG_DAYS)
        log_reference = logs.LogGroup.from_log_group_arn(self, "LogReference", log.attr_arn)
        self.workloads = HashedUpload(
            self,
            "Workloads",
            bucket=bucket,
            prefix=WORKLOAD_PREFIX,
            folder=REPOSITORY / "workloads",
            log_group=log_reference,
        )
        self.lifecycle = HashedUpload(
            self,
            "Lifecycle",
            bucket=bucket,
            prefix=LIFECYCLE_PREFIX,
            folder=REPOSITORY / "lifecycle" / "slurm",
            extra_files={SETTINGS: node_settings_text(cluster)},
            deployment_files={
                DEPLOYMENT: _deployment(
                    artifact_bucket=self.bucket_name,
                    workload_s3_uri=self.workloads.s3_uri,
                    remote_write_url=remote_write_url,
                    mlflow=mlflow,
                    studio=studio,
                )
            },
            log_group=log_reference,
        )


def _deployment(**values: str | Mapping[str, str | None] | Mapping[str, str] | None) -> str:
    """What the scripts must know of the deployment: tokens, which are texts without quotes or backslashes."""
    return json.dumps(values, indent=2, sort_keys=True) + "\n"
