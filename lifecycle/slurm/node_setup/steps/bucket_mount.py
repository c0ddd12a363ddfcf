"""Mount the data bucket through Mountpoint for Amazon S3, if the cluster file has a path for it."""

import shutil

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.service import remove_units, run_unit

UNIT = "data-bucket.service"
PROGRAM = "mount-s3"
SECONDS_FOR_MOUNT = 60


def apply(node: Node) -> None:
    """Run the service that mounts the bucket, and check the mount; without a path, remove it.

    The service runs as root, whose credentials are the node's. Users cannot reach these (credentials.py).

    Raises:
        SetupError: if the image lacks the program, or the bucket cannot be mounted.
    """
    path = node.settings.bucket_mount_path
    bucket = node.deployment.data_bucket
    if path is None or bucket is None:
        remove_units(node, (UNIT,))
        return
    program = shutil.which(PROGRAM)
    if program is None:
        raise SetupError(
            f"storage.data_bucket.mount_path is {path}, and this image has no {PROGRAM}",
            "install Mountpoint for Amazon S3 in an image of your own and set image_id of the groups, or set "
            "storage.data_bucket.mount_path to null",
        )
    run_unit(node, UNIT, program=program, bucket=bucket, path=path, region=node.settings.region)
    node.host.wait_for(
        lambda: _is_mounted(node, path),
        timeout_seconds=SECONDS_FOR_MOUNT,
        what=f"{path} is no mount of the bucket {bucket}",
        remedy=f"see `journalctl --unit {UNIT}`: the node's role needs s3:ListBucket and s3:GetObject",
    )


def _is_mounted(node: Node, path: str) -> bool:
    found = node.host.try_run("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", path)
    if "mountpoint-s3" not in found.output:
        raise SetupError(f"findmnt shows {found.said or 'no mount'}", "")
    return True
