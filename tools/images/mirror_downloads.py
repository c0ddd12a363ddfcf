"""Copy the downloads of nodes from the internet to the cluster's bucket and image repository.

This is for networks without internet access (``node_setup.downloads: artifact_bucket``). Run it on a machine
with internet access, after the storage stack is deployed and before the cluster is. Files are copied only if
their checksum is that of the table.
"""

import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from config.facts.instance_catalogue import instance_type
from config.reading.loader import load_slurm_cluster
from config.resource_names import ResourceNames, artifact_bucket
from config.slurm_cluster import SlurmCluster
from tools.archives import download
from tools.aws_session import aws_client, if_present, open_session
from tools.command_line import cluster_parser, run_command
from tools.images.image_registry import copy_image, registry_login

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
DEPLOY_STORAGE = "`make deploy STACKS=SlurmStorageStack` (with `CLUSTER=<file>` for another file)"
DEPLOY_FIRST = f"deploy the storage stack first: {DEPLOY_STORAGE}"


def main() -> int:
    parser = cluster_parser(
        "Copy the downloads of nodes to the cluster's bucket, for a closed network."
    )
    options = parser.parse_args()
    cluster = load_slurm_cluster(options.cluster)
    if not cluster.prometheus:
        print("nothing to copy: nodes fetch files for metrics only, and prometheus is false")
        return 0
    table = needed(cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    account = aws_client(session, "sts").get_caller_identity()["Account"]
    _mirror_files(aws_client(session, "s3"), artifact_bucket(cluster, account), table["files"])
    if not table["images"]:
        return 0
    ecr = aws_client(session, "ecr")
    repository = ResourceNames(cluster).image_repository
    copied = [_mirror_image(ecr, repository, image) for image in table["images"]]
    return 0 if all(copied) else SOME_LEFT


def needed(cluster: SlurmCluster) -> dict[str, list[dict[str, Any]]]:
    """Return ``files`` and ``images`` of the table; only clusters with GPUs need the images."""
    table: dict[str, list[dict[str, Any]]] = json.loads(TABLE.read_text())
    has_gpus = any(instance_type(group.instance_type).num_gpus for group in cluster.instance_groups)
    return table if has_gpus else {**table, "images": []}


def file_name(entry: dict[str, Any]) -> str:
    return str(entry["url"].rpartition("/")[2])


def image_digest(image: dict[str, Any]) -> str:
    return str(image["reference"].rpartition("@")[2])


def _mirror_files(s3: Any, bucket: str, files: list[dict[str, str]]) -> None:
    """Upload each file that the bucket lacks, with its checksum, which S3 checks and stores.

    Raises:
        ValueError: if a file cannot be fetched, or has another checksum than the table.
    """
    if if_present(s3.head_bucket, Bucket=bucket) is None:
        raise ValueError(f"bucket {bucket} does not exist; {DEPLOY_FIRST}")
    for entry in files:
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


def _mirror_image(ecr: Any, repository: str, image: dict[str, Any]) -> bool:
    """Copy an image to the repository under its digest.

    Returns: Whether the repository has the image. If no program on this machine can copy it, print what to
    install.

    Raises:
        ValueError: if the copy fails, or has another digest.
    """
    digest = image_digest(image)
    tag = f"{image['name']}-{image['version']}"
    if _has_image(ecr, repository, digest):
        print(f"{tag}: there already")
        return True
    login = registry_login(ecr)
    target = f"{login.registry}/{repository}:{tag}"
    if not copy_image(image["reference"], target, login):
        print(
            f"{tag}: neither skopeo nor docker with buildx is on this machine; install one of them (Debian, "
            "Ubuntu: apt-get install skopeo; macOS: brew install skopeo) and run this again",
            file=sys.stderr,
        )
        return False
    if not _has_image(ecr, repository, digest):
        raise ValueError(
            f"{target} was written, but its digest is not {digest}: the program that copied it changed the "
            "image; copy it with skopeo"
        )
    print(f"{tag}: copied to {target}")
    return True


def _has_image(ecr: Any, repository: str, digest: str) -> bool:
    try:
        ecr.describe_images(repositoryName=repository, imageIds=[{"imageDigest": digest}])
    except ecr.exceptions.ImageNotFoundException:
        return False
    except ecr.exceptions.RepositoryNotFoundException:
        raise ValueError(f"image repository {repository} does not exist; {DEPLOY_FIRST}") from None
    return True


if __name__ == "__main__":
    run_command(main)
