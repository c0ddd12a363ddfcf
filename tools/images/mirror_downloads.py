"""Copy the downloads of nodes from the internet to the cluster's bucket and image repository.

This is for networks without internet access (``node_setup.downloads: artifact_bucket``, or on EKS
``kubernetes.images: image_repository``). Run it on a machine with internet access, after the storage stack is
deployed and before the cluster is. Files and images are copied only if their checksum is that of the table.
"""

import base64
import json
import re
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.reading.loader import load_cluster
from config.resource_names import ResourceNames, artifact_bucket, construct_ids
from config.slurm_cluster import SlurmCluster
from manifests import public_images
from tools.archives import download
from tools.aws_session import aws_client, if_present, open_session
from tools.command_line import cluster_parser, run_command
from tools.images.image_registry import RegistryLogin, copy_image, registry_login
from tools.json_output import add_json_option, publish

TABLE = Path(__file__).parents[2] / "lifecycle" / "slurm" / "downloads.json"
"""Addresses, versions and checksums of the downloads."""
PREFIX = "downloads"
"""Prefix in the artifact bucket from which nodes download (node_setup/downloads.py)."""
UNREACHED = "run this where there is internet"
CHANGED = (
    f"the expected checksum is that of {TABLE.name}; the file was not uploaded. Either the transfer was cut,"
    " or a proxy changes files"
)
SOME_LEFT = 1
"""Exit status if an image could not be copied from this machine."""
_PRIVATE_REGISTRY = re.compile(r"\d{12}\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")
"""Host of a registry in ECR, which needs a login also for images that every account may read."""


@dataclass(frozen=True)
class ImageCopy:
    """Copy of an image in the cluster's repository."""

    source: str
    tag: str
    digest: str | None
    """Digest that the copy must have; null accepts the one that the source's tag has."""

    @property
    def image_id(self) -> dict[str, str]:
        """Return the image's id for ECR's API."""
        return {"imageDigest": self.digest} if self.digest else {"imageTag": self.tag}


def main() -> int:
    parser = cluster_parser(
        "Copy the downloads of nodes to the cluster's bucket and repository, for a closed network."
    )
    add_json_option(parser)
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    if isinstance(cluster, EksCluster) and not public_images.takes_copies(cluster):
        print(
            "nothing to copy: kubernetes.images is internet; set image_repository and deploy the storage"
            f" stack first: {deploy_storage(cluster)}"
        )
        return 0
    if isinstance(cluster, SlurmCluster) and not cluster.prometheus:
        print("nothing to copy: nodes fetch files for metrics only, and prometheus is false")
        return 0
    session = open_session(region=cluster.region, profile=options.profile)
    account = aws_client(session, "sts").get_caller_identity()["Account"]
    if isinstance(cluster, SlurmCluster):
        _mirror_files(cluster, aws_client(session, "s3"), account)
        publish(files=[file_name(entry) for entry in needed(cluster)["files"]])
    copies = image_copies(cluster)
    if not copies:
        return 0
    ecr = aws_client(session, "ecr")
    copied = [_mirror_image(cluster, ecr, copy, options.profile) for copy in copies]
    publish(
        images=[
            {"tag": copy.tag, "is_there": is_there}
            for copy, is_there in zip(copies, copied, strict=True)
        ]
    )
    return 0 if all(copied) else SOME_LEFT


def deploy_storage(cluster: Cluster) -> str:
    """Return the command that creates the bucket and the image repository, for messages."""
    stack = construct_ids(cluster).storage
    return f"`make deploy STACKS={stack}` (with `CLUSTER=<file>` for another file)"


def needed(cluster: SlurmCluster) -> dict[str, list[dict[str, Any]]]:
    """Return ``files`` and ``images`` of the table; only clusters with GPUs need the images."""
    table: dict[str, list[dict[str, Any]]] = json.loads(TABLE.read_text())
    has_gpus = any(group.hardware.num_gpus for group in cluster.instance_groups)
    return table if has_gpus else {**table, "images": []}


def image_copies(cluster: Cluster) -> list[ImageCopy]:
    """Return the copies of images that the cluster's nodes pull."""
    if isinstance(cluster, EksCluster):
        return [
            ImageCopy(image.copied_from, image.tag, image.digest)
            for image in public_images.needed_images(cluster)
        ]
    assert isinstance(cluster, SlurmCluster)
    return [
        ImageCopy(image["reference"], f"{image['name']}-{image['version']}", image_digest(image))
        for image in needed(cluster)["images"]
    ]


def file_name(entry: dict[str, Any]) -> str:
    return str(entry["url"].rpartition("/")[2])


def image_digest(image: dict[str, Any]) -> str:
    return str(image["reference"].rpartition("@")[2])


def _mirror_files(cluster: SlurmCluster, s3: Any, account: str) -> None:
    """Upload each file that the bucket lacks, with its checksum, which S3 checks and stores.

    Raises:
        ValueError: if a file cannot be fetched, or has another checksum than the table.
    """
    bucket = artifact_bucket(cluster, account)
    if if_present(s3.head_bucket, Bucket=bucket) is None:
        raise ValueError(f"bucket {bucket} does not exist; {_deploy_first(cluster)}")
    for entry in needed(cluster)["files"]:
        name = file_name(entry)
        key = f"{PREFIX}/{name}"
        checksum = base64.b64encode(bytes.fromhex(entry["sha256"])).decode()
        existing = if_present(s3.head_object, Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        if existing and existing.get("ChecksumSHA256") == checksum:
            print(f"{name}: there already")
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            download(entry["url"], path, entry["sha256"], unreached=UNREACHED, changed=CHANGED)
            with path.open("rb") as body:
                s3.put_object(Bucket=bucket, Key=key, Body=body, ChecksumSHA256=checksum)
        print(f"{name}: uploaded to s3://{bucket}/{key}")


def _mirror_image(cluster: Cluster, ecr: Any, copy: ImageCopy, profile: str | None) -> bool:
    """Copy an image to the repository, with its digest.

    Returns: Whether the repository has the image. If no program on this machine can copy it, print what to
    install.

    Raises:
        ValueError: if the copy fails, or has another digest.
    """
    if _digest_of(cluster, ecr, copy):
        print(f"{copy.tag}: there already")
        return True
    login = registry_login(ecr)
    target = f"{login.registry}/{ResourceNames(cluster).image_repository}:{copy.tag}"
    if not copy_image(copy.source, target, [login, *_source_logins(copy.source, profile)]):
        print(
            f"{copy.tag}: neither skopeo nor docker with buildx is on this machine; install one of them "
            "(Debian, Ubuntu: apt-get install skopeo; macOS: brew install skopeo) and run this again",
            file=sys.stderr,
        )
        return False
    digest = _digest_of(cluster, ecr, copy)
    if digest is None:
        raise ValueError(
            f"{target} was written, but its digest is not {copy.digest}: the program that copied it changed "
            "the image; copy it with skopeo"
            if copy.digest
            else f"{target} was written, but the repository does not have it: run this again"
        )
    print(f"{copy.tag}: copied to {target}")
    if copy.digest is None:
        print(f"{copy.tag}: the digest is {digest}; record it in manifests/public_images.py")
    return True


def _source_logins(source: str, profile: str | None) -> list[RegistryLogin]:
    """Return the login for a source in ECR, with the caller's own credentials; other sources need none."""
    host = source.partition("/")[0]
    private = _PRIVATE_REGISTRY.fullmatch(host)
    if private is None:
        return []
    session = open_session(region=private["region"], profile=profile)
    # The token is valid for all registries of the region that the caller may read.
    return [replace(registry_login(aws_client(session, "ecr")), registry=host)]


def _digest_of(cluster: Cluster, ecr: Any, copy: ImageCopy) -> str | None:
    """Return the digest of a copy, or None if the repository does not have it."""
    repository = ResourceNames(cluster).image_repository
    try:
        found = ecr.describe_images(repositoryName=repository, imageIds=[copy.image_id])
    except ecr.exceptions.ImageNotFoundException:
        return None
    except ecr.exceptions.RepositoryNotFoundException:
        raise ValueError(
            f"image repository {repository} does not exist; {_deploy_first(cluster)}"
        ) from None
    return str(found["imageDetails"][0]["imageDigest"])


def _deploy_first(cluster: Cluster) -> str:
    return f"deploy the storage stack first: {deploy_storage(cluster)}"


if __name__ == "__main__":
    run_command(main)
