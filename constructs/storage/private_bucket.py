"""Private buckets, the bucket of their access logs, and removal policies of storage."""

from typing import Any, cast

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from config.storage import Removal
from constructs import Construct
from constructs.policy.findings import skip_check

KEEP = RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
"""Removal policy of retained storage.

Resources of a failed first deployment are deleted, because they are empty and would bill unnoticed.
"""
ACCESS_LOG_DAYS = 90
"""Days for which access logs are kept."""
DELETED_LOG_DAYS = 30
"""Days in which people can notice and restore an access log that was deleted or overwritten."""
UPLOAD_DAYS = 7
"""Days after which unfinished uploads are deleted, because they bill unseen. Real uploads take hours."""


def removal_policy(removal: Removal) -> RemovalPolicy:
    return KEEP if removal == "retain" else RemovalPolicy.DESTROY


def access_log_bucket(scope: Construct, construct_id: str) -> s3.Bucket:
    """Create the bucket to which S3 writes the access logs of the other buckets.

    It never has the cluster's key, because S3 delivers logs only to buckets under its own key. It always
    outlives its stack, because access logs must not be deleted together with the accessed data.
    """
    bucket = _bucket(
        scope,
        construct_id,
        KEEP,
        encryption=s3.BucketEncryption.S3_MANAGED,
        lifecycle_rules=[
            s3.LifecycleRule(
                id="Expire",
                expiration=Duration.days(ACCESS_LOG_DAYS),
                noncurrent_version_expiration=Duration.days(DELETED_LOG_DAYS),
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
    """Create a versioned, encrypted bucket that accepts only TLS and logs its use under ``<construct_id>/``.

    With ``removal`` DESTROY, CloudFormation deletes the bucket if it is empty, and fails if it is not. The
    stack does not empty it, because that would require a function with permission to delete all data.

    Args:
        scope: parent construct.
        construct_id: id within the parent.
        key: key of the cluster, if it has one.
        access_logs: bucket of the access logs.
        removal: removal policy of the bucket and its policy.
        noncurrent_days: days in which people can restore a file that was overwritten or deleted.
        bucket_name: name of the bucket; by default, CloudFormation chooses it.
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
                id="AbortUploads",
                abort_incomplete_multipart_upload_after=Duration.days(UPLOAD_DAYS),
            ),
        ],
        server_access_logs_bucket=access_logs,
        server_access_logs_prefix=f"{construct_id}/",
    )


def _bucket(
    scope: Construct, construct_id: str, removal: RemovalPolicy, **properties: Any
) -> s3.Bucket:
    """Create a bucket without access from other accounts; its policy is removed or kept with it."""
    bucket = s3.Bucket(
        scope,
        construct_id,
        block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
        object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        enforce_ssl=True,
        minimum_tls_version=1.2,
        versioned=True,
        removal_policy=removal,
        **properties,
    )
    assert bucket.policy is not None  # created by enforce_ssl
    bucket.policy.apply_removal_policy(removal)
    return bucket
