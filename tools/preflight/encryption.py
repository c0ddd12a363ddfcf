"""The KMS key that is given by ARN."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import Cluster
from tools.aws_session import if_present
from tools.preflight.finding import Finding, fail, ok
from tools.preflight.read_only_aws import ReadOnlyAws


def check_key(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    arn = cluster.storage.kms
    if arn in ("aws", "create"):
        return
    region, key_id = arn.split(":")[3], arn.rpartition("/")[2]
    subject = f"KMS key {key_id}"
    if region != cluster.region:
        yield fail(
            subject, f"it is in {region}, the cluster in {cluster.region}", "name a key of that region"
        )
        return
    found = if_present(aws.call, "kms", "describe_key", KeyId=arn)
    if found is None:
        yield fail(subject, "there is no such key", "set storage.kms to `aws`, `create` or a key's ARN")
        return
    key = found["KeyMetadata"]
    if key["KeyState"] != "Enabled":
        yield fail(
            subject,
            f"its state is {key['KeyState']}",
            "`aws kms enable-key`, or `aws kms cancel-key-deletion` first if it is to be deleted",
        )
    elif (key["KeyUsage"], key["KeySpec"]) != ("ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT"):
        yield fail(
            subject,
            f"it is a {key['KeySpec']} key for {key['KeyUsage']}",
            "FSx, S3 and EBS take symmetric encryption keys only",
        )
    else:
        yield ok(subject, "enabled, symmetric")
