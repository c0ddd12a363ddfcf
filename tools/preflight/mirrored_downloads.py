"""Check that the cluster's bucket and image repository have copies of all downloads."""

from collections.abc import Iterator

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.resource_names import ResourceNames, artifact_bucket
from config.slurm_cluster import SlurmCluster
from manifests.public_images import takes_copies
from tools.images.mirror_downloads import PREFIX, deploy_storage, file_name, image_copies, needed
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
        yield from _check_number(
            cluster,
            "download the software for metrics from GitHub and nvcr.io",
            "set node_setup.downloads: artifact_bucket",
            switch_is_first=False,
        )
        return
    if not is_deployed(aws, cluster, "storage"):
        yield _without_storage(cluster, "the bucket")
        return
    bucket = artifact_bucket(cluster, aws.account)
    objects = aws.items("s3", "list_objects_v2", "Contents", Bucket=bucket, Prefix=f"{PREFIX}/")
    present = {entry["Key"].rpartition("/")[2] for entry in objects}
    files = [file_name(entry) for entry in needed(cluster)["files"]]
    missing = [name for name in files if name not in present]
    yield _judge([*missing, *_missing_images(aws, cluster)])


def check_images(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check that the image repository has the images of plugins, operators and collector."""
    if not takes_copies(cluster):
        yield from _check_number(
            cluster,
            "pull images of device plugins from nvcr.io and public.ecr.aws",
            "set kubernetes.images: image_repository",
            switch_is_first=True,
        )
    elif not is_deployed(aws, cluster, "storage"):
        yield _without_storage(cluster, "the image repository")
    else:
        yield _judge(_missing_images(aws, cluster))


def _check_number(
    cluster: Cluster, action: str, switch: str, *, switch_is_first: bool
) -> Iterator[Finding]:
    """Warn of many nodes with downloads from the internet.

    Args:
        cluster: cluster file.
        action: action of the nodes, for the message.
        switch: change of the cluster file that takes copies instead.
        switch_is_first: whether the storage stack and `make mirror-downloads` need the change.
    """
    num_nodes = sum(group.num_instances for group in cluster.instance_groups)
    if num_nodes <= MOST_FROM_INTERNET:
        return
    copies = f"{deploy_storage(cluster)}, then `make mirror-downloads`"
    yield DOWNLOADS.warn(
        f"{num_nodes} nodes {action} through one address, which these services may limit",
        f"{switch}, {copies}, then the rest" if switch_is_first else f"{copies}; then {switch}",
    )


def _without_storage(cluster: Cluster, place: str) -> Finding:
    return DOWNLOADS.fail(
        f"{place} for them does not exist, and nodes need them at their first start",
        f"{deploy_storage(cluster)}, then `make mirror-downloads`, then the rest",
    )


def _missing_images(aws: ReadOnlyAws, cluster: Cluster) -> list[str]:
    """Return the tags of copies that the image repository lacks."""
    repository = ResourceNames(cluster).image_repository
    return [
        copy.tag
        for copy in image_copies(cluster)
        if aws.find("ecr", "describe_images", repositoryName=repository, imageIds=[copy.image_id])
        is None
    ]


def _judge(missing: list[str]) -> Finding:
    if missing:
        return DOWNLOADS.fail(
            f"missing: {', '.join(missing)}", "run `make mirror-downloads` before nodes start"
        )
    return DOWNLOADS.ok("complete")
