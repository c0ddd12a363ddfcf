"""Files uploaded to S3 under a prefix that names their contents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aws_cdk import Stack, Token
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_deployment as s3_deployment

from config.content_hash import IGNORED, content_hash
from constructs import Construct, IDependable
from constructs.policy.findings import (
    acknowledge,
    assets_finding,
    library_findings,
    wildcard_finding,
)

CURRENT = "current"
"""Object beside the versions that holds the address of the current one, without a newline."""
MEMORY_MIB = 512
"""Memory of BucketDeployment's function; a stack has one function per size."""


@dataclass(frozen=True)
class UploadTarget:
    """Bucket of uploads, with its key and the log group of the function that writes to it."""

    bucket: s3.IBucket
    key: kms.IKey | None
    log: logs.CfnLogGroup


@dataclass(frozen=True)
class UploadedFiles:
    """Files of an upload."""

    folder: Path
    """Folder that is uploaded with everything below it."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Texts of additional files by name, which are part of the hash."""
    deployment: Mapping[str, str] = field(default_factory=dict)
    """Texts of additional files with values that exist only at deployment, by name.

    They are not part of the hash, and are overwritten when such a value changes.
    """


class HashedUpload(Construct):
    """Files below ``<prefix>/<hash of their contents>/``.

    A change creates a new prefix and leaves earlier ones in place, so that a cluster that rolls back and a
    node that is replaced meanwhile still find their version of the files.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        target: UploadTarget,
        prefix: str,
        files: UploadedFiles,
    ) -> None:
        super().__init__(scope, construct_id)
        resource = target.bucket.node.default_child
        assert isinstance(resource, s3.CfnBucket) and resource.bucket_name
        self.bucket_name = resource.bucket_name
        # BucketDeployment tags a bucket of this app with the prefix, so that the storage stack would change
        # with every change of a script. It does not tag an imported bucket.
        self._bucket = s3.Bucket.from_bucket_attributes(
            self, "Bucket", bucket_name=self.bucket_name, encryption_key=target.key
        )
        self._log = logs.LogGroup.from_log_group_arn(self, "Log", target.log.attr_arn)
        # A token has a different text in each synthesis.
        assert not any(Token.is_unresolved(text) for text in files.extra.values())
        self._prefix = prefix
        key_prefix = f"{prefix}/{content_hash(files.folder, files.extra)}"
        self.s3_uri = f"s3://{self.bucket_name}/{key_prefix}"
        ignored = [f"**/{name}" for name in IGNORED]
        sources = [s3_deployment.Source.asset(str(files.folder), exclude=ignored)]
        for name, text in {**files.extra, **files.deployment}.items():
            sources.append(s3_deployment.Source.data(name, text))
        deployment = self._deployment(self, "Files", key_prefix, sources)
        _acknowledge_handler(deployment, self._bucket)

    @property
    def current_s3_uri(self) -> str:
        """Address of the object that ``point_to_current`` writes."""
        return f"s3://{self.bucket_name}/{self._prefix}/{CURRENT}"

    def point_to_current(
        self,
        scope: Construct,
        construct_id: str,
        *,
        files: Mapping[str, str] | None = None,
        after: Sequence[IDependable] = (),
    ) -> s3_deployment.BucketDeployment:
        """Write the object that names this version, and files beside it, at addresses that never change.

        A deployment that rolls back restores the earlier object.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            files: texts of the files beside the object, by name.
            after: constructs that, like this version, must be complete before the object names it.
        """
        texts = {CURRENT: self.s3_uri, **(files or {})}
        sources = [s3_deployment.Source.data(name, text) for name, text in texts.items()]
        # It has the memory size of the other upload, so that the stack has one function.
        pointer = self._deployment(scope, construct_id, self._prefix, sources)
        pointer.node.add_dependency(self, *after)
        return pointer

    def _deployment(
        self,
        scope: Construct,
        construct_id: str,
        key_prefix: str,
        sources: Sequence[s3_deployment.ISource],
    ) -> s3_deployment.BucketDeployment:
        """Write files below a prefix of the bucket; later deployments and deletions leave them in place."""
        return s3_deployment.BucketDeployment(
            scope,
            construct_id,
            destination_bucket=self._bucket,
            destination_key_prefix=key_prefix,
            sources=sources,
            prune=False,
            retain_on_delete=True,
            memory_limit=MEMORY_MIB,
            log_group=self._log,
        )


def _acknowledge_handler(deployment: s3_deployment.BucketDeployment, bucket: s3.IBucket) -> None:
    """Accept findings on BucketDeployment's function, because aws-cdk-lib defines its role and runtime."""
    stack = Stack.of(deployment)
    handler = deployment.handler_role.node.scope
    assert handler is not None
    owner = "BucketDeployment's own function"
    objects = f"arn:{stack.partition}:s3:::{bucket.bucket_name}/*"
    actions = ["s3:GetBucket*", "s3:GetObject*", "s3:List*", "s3:Abort*", "s3:DeleteObject*"]
    if bucket.encryption_key:
        actions += ["kms:ReEncrypt*", "kms:GenerateDataKey*"]
    copies = "it copies all files of a prefix between these two buckets"
    findings = {
        **library_findings(owner),
        assets_finding(stack): copies,
        wildcard_finding(stack, objects): copies,
    }
    for action in actions:
        findings[f"AwsSolutions-IAM5[Action::{action}]"] = f"{owner}; aws-cdk-lib sets the actions"
    acknowledge(handler, findings)
