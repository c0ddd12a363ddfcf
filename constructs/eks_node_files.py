"""What nodes of EKS read from S3: the scripts that set them up."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3

from constructs import Construct
from constructs.hashed_upload import HashedUpload
from constructs.log_group import log_group
from constructs.node_statements import LIFECYCLE_PREFIX

SCRIPTS = Path(__file__).parents[1] / "lifecycle" / "eks"
LOG_DAYS = 30


class EksNodeFiles(Construct):
    """Lifecycle scripts in the artifact bucket. The training code is in its image."""

    def __init__(
        self, scope: Construct, construct_id: str, *, artifact_bucket: s3.IBucket, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        resource = artifact_bucket.node.default_child
        assert isinstance(resource, s3.CfnBucket) and resource.bucket_name
        self.bucket_name = resource.bucket_name
        log = log_group(self, "Log", key=key, retention_days=LOG_DAYS)
        self.lifecycle = HashedUpload(
            self,
            "Lifecycle",
            # By its name, which is known, rather than by a reference to the other stack.
            bucket=s3.Bucket.from_bucket_attributes(
                self, "Bucket", bucket_name=self.bucket_name, encryption_key=key
            ),
            prefix=LIFECYCLE_PREFIX,
            folder=SCRIPTS,
            log_group=logs.LogGroup.from_log_group_arn(self, "LogReference", log.attr_arn),
        )
