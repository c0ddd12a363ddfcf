"""Files that nodes read from S3: setup scripts and training code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from config.node_settings import node_settings_text
from config.slurm_cluster import SlurmCluster
from constructs import Construct
from constructs.nodes.node_roles import LIFECYCLE_PREFIX, WORKLOAD_PREFIX
from constructs.storage.hashed_upload import HashedUpload
from constructs.storage.log_group import log_group

REPOSITORY = Path(__file__).parents[2]
EKS_SCRIPTS = REPOSITORY / "lifecycle" / "eks"
SETTINGS = "settings.json"
"""Settings of the cluster file, which are part of the scripts' hash."""
DEPLOYMENT = "deployment.json"


class EksNodeFiles(Construct):
    """Lifecycle scripts of EKS in the artifact bucket. The training code is in its image."""

    def __init__(
        self, scope: Construct, construct_id: str, *, artifact_bucket: s3.IBucket, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        upload = _upload(self, artifact_bucket, key)
        self.lifecycle = upload("Lifecycle", prefix=LIFECYCLE_PREFIX, folder=EKS_SCRIPTS)


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
        deployment: Mapping[str, Any],
    ) -> None:
        """``deployment`` has tokens, which are texts without quotes or backslashes."""
        super().__init__(scope, construct_id)
        upload = _upload(self, artifact_bucket, key)
        self.workloads = upload("Workloads", prefix=WORKLOAD_PREFIX, folder=REPOSITORY / "workloads")
        known = {
            **deployment,
            "artifact_bucket": self.workloads.bucket_name,
            "workload_s3_uri": self.workloads.s3_uri,
        }
        self.lifecycle = upload(
            "Lifecycle",
            prefix=LIFECYCLE_PREFIX,
            folder=REPOSITORY / "lifecycle" / "slurm",
            extra_files={SETTINGS: node_settings_text(cluster)},
            deployment_files={DEPLOYMENT: json.dumps(known, indent=2, sort_keys=True) + "\n"},
        )


def _upload(scope: Construct, artifact_bucket: s3.IBucket, key: kms.IKey | None) -> partial[HashedUpload]:
    log = log_group(scope, "Log", key=key)
    return partial(HashedUpload, scope, artifact_bucket=artifact_bucket, key=key, log=log)
