"""Check that the cluster's bucket and image repository have copies of all downloads."""

from collections.abc import Iterator

from config.resource_names import ResourceNames, artifact_bucket
from config.slurm_cluster import SlurmCluster
from tools.images.mirror_downloads import DEPLOY_STORAGE, PREFIX, file_name, image_digest, needed
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed

DOWNLOADS = Subject("copies of downloads")
MOST_FROM_INTERNET = 32
"""Most nodes that download from the internet without a warning."""


def check_mirror(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    """Check that all copies exist; without them nodes fail, which shows only after a long wait."""
    if not cluster.prometheus:
        return
    if cluster.node_setup.downloads == "internet":
        num_nodes = sum(group.num_instances for group in cluster.instance_groups)
        if num_nodes > MOST_FROM_INTERNET:
            yield DOWNLOADS.warn(
                f"{num_nodes} nodes download the software for metrics from GitHub and nvcr.io through one "
                "address, which these services may limit",
                f"{DEPLOY_STORAGE}, then `make mirror-downloads`; then set node_setup.downloads: "
                "artifact_bucket",
            )
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
    present = {entry["Key"].rpartition("/")[2] for entry in objects}
    missing = [file_name(entry) for entry in table["files"] if file_name(entry) not in present]
    for image in table["images"]:
        image_ids = [{"imageDigest": image_digest(image)}]
        found = aws.find("ecr", "describe_images", repositoryName=repository, imageIds=image_ids)
        if found is None:
            missing.append(image["name"])
    if missing:
        yield DOWNLOADS.fail(
            f"missing: {', '.join(missing)}", "run `make mirror-downloads` before nodes start"
        )
    else:
        yield DOWNLOADS.ok("complete")
