"""Checks of resources that must exist: machine images, a KMS key, and copies of downloads."""

from collections.abc import Iterator

from config.cluster import Cluster
from config.facts.instance_catalogue import instance_type
from config.resource_names import ResourceNames, artifact_bucket
from config.slurm_cluster import SlurmCluster
from tools.images.mirror_downloads import DEPLOY_STORAGE, PREFIX, file_name, image_digest, needed
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed

DOWNLOADS = Subject("copies of downloads")


def check_images(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    for group in cluster.instance_groups:
        if group.image_id is None:
            continue
        subject = Subject(f"image {group.image_id}")
        found = aws.find("ec2", "describe_images", ImageIds=[group.image_id])
        if found is None:
            action = "set image_id to a HyperPod image of this region, or remove it"
            yield subject.fail(f"was not found in {cluster.region}; it may be deregistered", action)
            continue
        images = found["Images"]
        architecture = instance_type(group.instance_type).architecture
        if not images:
            yield subject.fail(
                "does not exist, or is not shared with this account", "ask its owner to share it"
            )
        elif images[0]["State"] != "available":
            yield subject.fail(f"its state is {images[0]['State']}", "wait until it is available")
        elif images[0]["Architecture"] != architecture:
            yield subject.fail(
                f"it is {images[0]['Architecture']}, {group.instance_type} is {architecture}",
                "set an image_id of the right architecture",
            )
        else:
            yield subject.ok(f"available for group {group.name}")


def check_key(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    arn = cluster.storage.kms
    if arn in ("aws", "create"):
        return
    subject = Subject(f"KMS key {arn.rpartition('/')[2]}")
    found = aws.find("kms", "describe_key", KeyId=arn)
    if found is None:
        yield subject.fail("there is no such key", "set storage.kms to `aws`, `create` or a key's ARN")
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


def check_mirror(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    """Check that all copies exist; without them nodes fail, which shows only after a long wait."""
    if cluster.node_setup.downloads == "internet" or not cluster.prometheus:
        return
    if not is_deployed(aws, cluster, "storage"):
        yield DOWNLOADS.fail(
            "the bucket for them does not exist, and nodes need them at their first start",
            f"{DEPLOY_STORAGE}, then `make mirror-downloads`, then the rest",
        )
        return
    table = needed(cluster)
    bucket = artifact_bucket(cluster, aws.account)
    repository = ResourceNames(cluster).image_repository
    objects = aws.items("s3", "list_objects_v2", "Contents", Bucket=bucket, Prefix=f"{PREFIX}/")
    there = {entry["Key"].rpartition("/")[2] for entry in objects}
    missing = [file_name(entry) for entry in table["files"] if file_name(entry) not in there]
    for image in table["images"]:
        wanted = [{"imageDigest": image_digest(image)}]
        found = aws.find("ecr", "describe_images", repositoryName=repository, imageIds=wanted)
        if found is None:
            missing.append(image["name"])
    if missing:
        yield DOWNLOADS.fail(
            f"missing: {', '.join(missing)}", "run `make mirror-downloads` before nodes start"
        )
    else:
        yield DOWNLOADS.ok("complete")
