"""Check of the copies of internet downloads in this cluster's bucket and image repository."""

from collections.abc import Iterator

from config.resource_names import artifact_bucket, image_repository
from config.slurm_cluster import SlurmCluster
from tools.aws_session import if_present
from tools.images.mirror_downloads import DEPLOY_STORAGE, PREFIX, file_name, image_digest, needed
from tools.preflight.finding import Finding, fail, ok
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed

SUBJECT = "copies of downloads"


def check_mirror(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    """Check that all copies exist; without them nodes fail, which shows only after a long wait."""
    if cluster.node_setup.downloads == "internet" or not cluster.prometheus:
        return
    if not is_deployed(aws, cluster, "storage"):
        yield fail(
            SUBJECT,
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
            SUBJECT, f"missing: {', '.join(missing)}", "run `make mirror-downloads` before nodes start"
        )
    else:
        yield ok(SUBJECT, "complete")
