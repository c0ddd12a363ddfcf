"""The training code of this checkout, brought to the cluster: one folder for each version of its contents.

Jobs read their version for as long as they run, even if others are submitted or deployed meanwhile.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from config.content_hash import IGNORED, content_hash
from config.resource_names import artifact_bucket
from config.slurm_cluster import SlurmCluster
from seqlm.training.whole_file import move_into_place
from tools.aws_session import all_items, aws_client, open_session
from tools.images.source_revision import read_revision
from tools.nodes.head_node import HeadNode

WORKLOADS = Path(__file__).parents[2] / "workloads"
BRING_CODE = Path(__file__).with_name("bring_code.sh")
PREFIX = "workloads"
"""Prefix of the artifact bucket; deployments upload there under the same names."""


def code_hash() -> str:
    """Return the version of the code, a hash of its contents."""
    return content_hash(WORKLOADS, {})


def deployed_folder(cluster: SlurmCluster) -> Path:
    """Return the folder of this version on nodes, if it was deployed."""
    return Path(cluster.storage.shared_path) / "workloads" / code_hash()


def copy_here(cluster: SlurmCluster, folder: str) -> str:
    """Return the folder of the code on the cluster: the deployed version, or a new copy of the user's own.

    Raises:
        ValueError: if it cannot be written.
    """
    deployed = deployed_folder(cluster)
    target = deployed if deployed.is_dir() else Path(folder) / "copies" / code_hash()
    if target.is_dir():
        return str(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".partial-", dir=target.parent) as partial:
            copy = Path(partial, target.name)
            shutil.copytree(WORKLOADS, copy, ignore=shutil.ignore_patterns(*IGNORED))
            move_into_place(copy, target)
    except OSError as error:
        if not target.is_dir():  # else another submission was first
            raise ValueError(
                f"the code cannot be copied to {target}: {error.strerror or error}; free space (df -h), or "
                "name a folder of yours on the shared file system with --folder"
            ) from None
    return str(target)


def bring(cluster: SlurmCluster, head: HeadNode, profile: str | None) -> str:
    """Copy by way of the artifact bucket, which the nodes read, and return the folder on the nodes.

    Raises:
        ValueError: if the head node cannot copy it.
    """
    session = open_session(region=cluster.region, profile=profile)
    account = aws_client(session, "sts").get_caller_identity()["Account"]
    bucket = artifact_bucket(cluster, account)
    version = code_hash()
    _upload(aws_client(session, "s3"), bucket, f"{PREFIX}/{version}")
    folder = str(deployed_folder(cluster))
    said: list[str] = []
    arguments = [cluster.region, f"s3://{bucket}/{PREFIX}/{version}", folder]
    if head.run_as_root(BRING_CODE.read_text(), arguments, said.append):
        raise ValueError(f"{head.name}: " + "\n".join(said))
    return folder


def _upload(s3: Any, bucket: str, prefix: str) -> None:
    """Upload missing files. Names are hashes of the contents, so files are never overwritten with others."""
    found = all_items(s3, "list_objects_v2", "Contents", Bucket=bucket, Prefix=f"{prefix}/")
    there = {item["Key"] for item in found}
    ignored = shutil.ignore_patterns(*IGNORED)
    for path in sorted(WORKLOADS.rglob("*")):
        key = f"{prefix}/{path.relative_to(WORKLOADS).as_posix()}"
        if path.is_file() and key not in there and not ignored("", list(path.parts)):
            s3.upload_file(str(path), bucket, key)


def code_revision() -> str:
    """Return the code's revision for checkpoints and reports: the commit, or the contents' hash."""
    try:
        return read_revision(Path(__file__).parents[2]).tag
    except ValueError:  # no clone, or one that belongs to somebody else
        return code_hash()
