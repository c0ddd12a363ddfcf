"""What spaces of Studio fetch at their start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_deployment as s3_deployment

from constructs import Construct
from constructs.nodes.node_statements import Statement
from constructs.storage.hashed_upload import MEMORY_MIB, HashedUpload, bucket_by_name

FOLDER = Path(__file__).parents[2] / "lifecycle" / "studio"
PREFIX, CLIENT_PREFIX = "studio", "studio-login"
"""Of the artifact bucket: the scripts of spaces, and Slurm's commands, which the controller puts there."""
CURRENT = "current"


class StudioFiles(Construct):
    """Scripts of spaces with their settings, in the artifact bucket.

    ``current_s3_uri`` is a file that says where the newest are, at an address that stays the same.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        artifact_bucket: s3.IBucket,
        settings: Mapping[str, Any],
        key: kms.IKey | None,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        self.bucket_name, bucket = bucket_by_name(self, "Bucket", artifact_bucket, key)
        log_group = logs.LogGroup.from_log_group_arn(self, "LogReference", log.attr_arn)
        upload = HashedUpload(
            self,
            "Scripts",
            bucket=bucket,
            prefix=PREFIX,
            folder=FOLDER,
            deployment_files={"settings.json": json.dumps(settings, indent=2, sort_keys=True) + "\n"},
            log_group=log_group,
        )
        # By the function of the other, without which one would be made for this alone.
        pointer = s3_deployment.BucketDeployment(
            self,
            "Current",
            destination_bucket=bucket,
            destination_key_prefix=PREFIX,
            sources=[s3_deployment.Source.data(CURRENT, upload.s3_uri)],
            prune=False,
            retain_on_delete=True,
            memory_limit=MEMORY_MIB,
            log_group=log_group,
        )
        pointer.node.add_dependency(upload)
        self.current_s3_uri = f"s3://{bucket.bucket_name}/{PREFIX}/{CURRENT}"


def read_statements(partition: str, bucket_name: str, *prefixes: str) -> list[Statement]:
    """Reading what lies below prefixes of the artifact bucket."""
    bucket = f"arn:{partition}:s3:::{bucket_name}"
    return [
        Statement(
            "ListScripts",
            ["s3:ListBucket"],
            [bucket],
            {"StringLike": {"s3:prefix": [f"{prefix}/*" for prefix in prefixes]}},
        ),
        Statement(
            "ReadScripts",
            ["s3:GetObject"],
            [f"{bucket}/{prefix}/*" for prefix in prefixes],
            why_wildcard="each version lies below a hash of its own",
        ),
    ]
