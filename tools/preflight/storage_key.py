"""Check of the KMS key that the cluster file names."""

from collections.abc import Iterator

from config.cluster import Cluster
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws


def check_key(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    arn = cluster.storage.kms
    if arn in ("aws", "create"):
        return
    subject = Subject(f"KMS key {arn.rpartition('/')[2]}")
    found = aws.find("kms", "describe_key", KeyId=arn)
    if found is None:
        yield subject.fail(
            "there is no such key", "set storage.kms to `aws`, `create` or a key's ARN"
        )
        return
    key = found["KeyMetadata"]
    if key["KeyState"] != "Enabled":
        yield subject.fail(
            f"its state is {key['KeyState']}",
            "`aws kms enable-key`, or `aws kms cancel-key-deletion` first if it is to be deleted",
        )
    elif (key["KeyUsage"], key["KeySpec"]) != ("ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT"):
        yield subject.fail(
            f"it is a {key['KeySpec']} key for {key['KeyUsage']}",
            "set a symmetric encryption key, which FSx, S3 and EBS require",
        )
    else:
        yield subject.ok("enabled, symmetric")
