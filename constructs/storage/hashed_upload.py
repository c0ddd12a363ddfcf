"""Files uploaded to S3 under a prefix that names their contents."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from aws_cdk import Stack, Token
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_deployment as s3_deployment

from config.content_hash import IGNORED, content_hash
from constructs import Construct, IDependable
from constructs.policy.findings import acknowledge, assets_finding, library_findings, wildcard_finding

CURRENT = "current"
"""Object beside the versions that holds the address of the current one, without a newline."""
MEMORY_MIB = 512
"""Memory of BucketDeployment's function; a stack has one function per size."""


class HashedUpload(Construct):
    """A folder's files, and small extra ones, below ``<prefix>/<hash of their contents>/``.

    ``deployment_files`` have values in them that only the deployment knows. They lie beside the others, are
    no part of the hash, and are overwritten when such a value changes.

    A change makes a new prefix and leaves earlier ones where they are: a cluster that rolls back, and a node
    that is replaced meanwhile, still find the files that they were given.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        artifact_bucket: s3.IBucket,
        key: kms.IKey | None,
        log: logs.CfnLogGroup,
        prefix: str,
        folder: Path,
        extra_files: Mapping[str, str] | None = None,
        deployment_files: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(scope, construct_id)
        resource = artifact_bucket.node.default_child
        assert isinstance(resource, s3.CfnBucket) and resource.bucket_name
        self.bucket_name = resource.bucket_name
        # BucketDeployment tags the bucket it is given with the prefix: the storage stack would change with
        # every change of a script. It leaves an imported bucket alone.
        bucket = s3.Bucket.from_bucket_attributes(
            self, "Bucket", bucket_name=self.bucket_name, encryption_key=key
        )
        extra = dict(extra_files or {})
        # A token stands for another text in each synthesis.
        assert not any(Token.is_unresolved(text) for text in extra.values())
        self._prefix, key_prefix = prefix, f"{prefix}/{content_hash(folder, extra)}"
        self.s3_uri = f"s3://{bucket.bucket_name}/{key_prefix}"
        self._bucket, self._log = bucket, logs.LogGroup.from_log_group_arn(self, "Log", log.attr_arn)
        texts = extra | dict(deployment_files or {})
        files = [s3_deployment.Source.asset(str(folder), exclude=[f"**/{name}" for name in IGNORED])]
        files += [s3_deployment.Source.data(name, text) for name, text in texts.items()]
        _acknowledge_handler(self._deployment(self, "Files", key_prefix, files), bucket)

    @property
    def current_s3_uri(self) -> str:
        """Address of the object that ``point_to_current`` writes."""
        return f"s3://{self.bucket_name}/{self._prefix}/{CURRENT}"

    def point_to_current(
        self,
        scope: Construct,
        *,
        files: Mapping[str, str] | None = None,
        after: Sequence[IDependable] = (),
    ) -> s3_deployment.BucketDeployment:
        """Write the object that names this version, and ``files`` beside it, at addresses that never change.

        The version, and everything in ``after``, is whole before the object names it. A deployment that rolls
        back restores the earlier object.
        """
        texts = {CURRENT: self.s3_uri, **(files or {})}
        sources = [s3_deployment.Source.data(name, text) for name, text in texts.items()]
        # It shares the function of the other upload, so that the stack has one function.
        pointer = self._deployment(scope, "Current", self._prefix, sources)
        pointer.node.add_dependency(self, *after)
        return pointer

    def _deployment(
        self, scope: Construct, construct_id: str, key_prefix: str, sources: Sequence[s3_deployment.ISource]
    ) -> s3_deployment.BucketDeployment:
        """Put files below a prefix of the bucket, where they stay."""
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
    """Acknowledge findings of BucketDeployment's function; aws-cdk-lib defines its role and runtime."""
    stack = Stack.of(deployment)
    handler = deployment.handler_role.node.scope
    assert handler is not None
    owner = "BucketDeployment's own function"
    objects = f"arn:{stack.partition}:s3:::{bucket.bucket_name}/*"
    actions = ["s3:GetBucket*", "s3:GetObject*", "s3:List*", "s3:Abort*", "s3:DeleteObject*"]
    if bucket.encryption_key:
        actions += ["kms:ReEncrypt*", "kms:GenerateDataKey*"]
    findings = {
        **library_findings(owner),
        **{
            f"AwsSolutions-IAM5[Action::{action}]": f"{owner}; aws-cdk-lib sets the actions"
            for action in actions
        },
        **dict.fromkeys(
            (assets_finding(stack), wildcard_finding(stack, objects)),
            "it copies all of a prefix, between these two buckets",
        ),
    }
    acknowledge(handler, findings)
