"""Buckets without access from other accounts, with access logs, and removal policies of storage."""

from typing import Any, cast

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from config.storage import Removal
from constructs import Construct
from constructs.policy.findings import skip_check

KEEP = RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
"""Resources of a failed first deployment are not kept, because they are empty and would bill unnoticed."""
UPLOAD_DAYS = 7
"""Days after which unfinished uploads are deleted. They are invisible and bill. Real uploads take hours."""


def removal_policy(removal: Removal) -> RemovalPolicy:
    return KEEP if removal == "retain" else RemovalPolicy.DESTROY


def access_log_bucket(scope: Construct, construct_id: str) -> s3.Bucket:
    """Create the bucket to which S3 writes the access logs of the others.

    S3 delivers to buckets under its own key only, so this one never has the cluster's. It always outlives
    its stack, because a record of access is of no use if it is deleted with the accessed data.
    """
    bucket = _bucket(
        scope,
        construct_id,
        KEEP,
        encryption=s3.BucketEncryption.S3_MANAGED,
        lifecycle_rules=[
            s3.LifecycleRule(
                id="Expire",
                expiration=Duration.days(90),
                # Time to notice that someone deleted a record.
                noncurrent_version_expiration=Duration.days(30),
            )
        ],
    )
    resource = cast(s3.CfnBucket, bucket.node.default_child)
    skip_check(resource, "CKV_AWS_18", "A log of its own reading has no end.")
    return bucket


def private_bucket(
    scope: Construct,
    construct_id: str,
    *,
    key: kms.IKey | None,
    access_logs: s3.Bucket,
    removal: RemovalPolicy,
    noncurrent_days: int = 30,
    bucket_name: str | None = None,
) -> s3.Bucket:
    """Create a versioned, encrypted bucket that accepts TLS only and logs its use under ``<construct_id>/``.

    Within ``noncurrent_days`` people can restore a file that was overwritten or deleted.

    With ``removal`` DESTROY CloudFormation deletes the bucket if it is empty and fails if it is not. Nothing
    here empties it, which would need a function with the right to delete all data.
    """
    return _bucket(
        scope,
        construct_id,
        removal,
        bucket_name=bucket_name,
        encryption=s3.BucketEncryption.KMS if key else s3.BucketEncryption.S3_MANAGED,
        encryption_key=key,
        # One data key per bucket and hour instead of one KMS request per object.
        bucket_key_enabled=True if key else None,
        lifecycle_rules=[
            s3.LifecycleRule(
                id="ExpireOldVersions",
                noncurrent_version_expiration=Duration.days(noncurrent_days),
                expired_object_delete_marker=True,
            ),
            s3.LifecycleRule(
                id="AbortUploads", abort_incomplete_multipart_upload_after=Duration.days(UPLOAD_DAYS)
            ),
        ],
        server_access_logs_bucket=access_logs,
        server_access_logs_prefix=f"{construct_id}/",
    )


def _bucket(scope: Construct, construct_id: str, removal: RemovalPolicy, **own: Any) -> s3.Bucket:
    """Create a bucket of this account alone; one that stays behind still takes TLS only."""
    bucket = s3.Bucket(
        scope,
        construct_id,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        enforce_ssl=True,
        minimum_tls_version=1.2,
        versioned=True,
        removal_policy=removal,
        **own,
    )
    assert bucket.policy is not None  # enforce_ssl makes it
    bucket.policy.apply_removal_policy(removal)
    return bucket
