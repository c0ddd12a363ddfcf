"""Checks of resources that must exist: machine images, a KMS key, and copies of downloads."""

from collections.abc import Iterator

from config.cluster import Cluster
from config.facts.instance_catalogue import instance_type
from config.resource_names import artifact_bucket, image_repository
from config.slurm_cluster import SlurmCluster
from tools.aws_session import if_present
from tools.images.mirror_downloads import DEPLOY_STORAGE, PREFIX, file_name, image_digest, needed
from tools.preflight.finding import Finding, fail, ok
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed

DOWNLOADS = "copies of downloads"


def check_images(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    for group in cluster.instance_groups:
        if group.image_id is None:
            continue
        subject = f"image {group.image_id}"
        found = if_present(aws.call, "ec2", "describe_images", ImageIds=[group.image_id])
        if found is None:
            action = "set image_id to a HyperPod image of this region, or remove it"
            yield fail(subject, f"was not found in {cluster.region}; it may be deregistered", action)
            continue
        images, architecture = found["Images"], instance_type(group.instance_type).architecture
        if not images:
            yield fail(
                subject, "does not exist, or is not shared with this account", "ask its owner to share it"
            )
        elif images[0]["State"] != "available":
            yield fail(subject, f"its state is {images[0]['State']}", "wait until it is available")
        elif images[0]["Architecture"] != architecture:
            yield fail(
                subject,
                f"it is {images[0]['Architecture']}, {group.instance_type} is {architecture}",
                "set an image_id of the right architecture",
            )
        else:
            yield ok(subject, f"available for group {group.name}")


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
            "set a symmetric encryption key, which FSx, S3 and EBS require",
        )
    else:
        yield ok(subject, "enabled, symmetric")


def check_mirror(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    """Check that all copies exist; without them nodes fail, which shows only after a long wait."""
    if cluster.node_setup.downloads == "internet" or not cluster.prometheus:
        return
    if not is_deployed(aws, cluster, "storage"):
        yield fail(
            DOWNLOADS,
            "the bucket for them does not exist, and nodes need them at their first start",
            f"{DEPLOY_STORAGE}, then `make mirror-downloads`, then the rest",
        )
        return
    table = needed(cluster)
    bucket, repository = artifact_bucket(cluster, aws.account), image_repository(cluster)
    objects = aws.items("s3", "list_objects_v2", "Contents", Bucket=bucket, Prefix=f"{PREFIX}/")
    there = {entry["Key"].rpartition("/")[2] for entry in objects}
    missing = [file_name(entry) for entry in table["files"] if file_name(entry) not in there]
    for image in table["images"]:
        wanted = [{"imageDigest": image_digest(image)}]
        found = if_present(aws.call, "ecr", "describe_images", repositoryName=repository, imageIds=wanted)
        if found is None:
            missing.append(image["name"])
    if missing:
        yield fail(
            DOWNLOADS, f"missing: {', '.join(missing)}", "run `make mirror-downloads` before nodes start"
        )
    else:
        yield ok(DOWNLOADS, "complete")
