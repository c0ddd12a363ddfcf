"""Files outside the bucket: homes, container images, runs. rsync copies them on a node of the new cluster.

rsync is part of every Linux distribution. It keeps owners by number, times, links and holes, it continues
where it was interrupted, and it copies what has changed since. AWS DataSync makes a file of each hard link
and bills by the gigabyte.
"""

import secrets
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from config.cluster import Cluster
from config.node_settings import HOME_MOUNT_PATH
from config.slurm_cluster import SlurmCluster
from tools.command_line import Say
from tools.migrate.storage import FileSystem, Storage
from tools.nodes.head_node import HeadNode

SCRIPT = Path(__file__).with_name("copy_tree.sh")
Action = Literal["copy", "compare", "compare-contents"]
LUSTRE_HOMES = "home"
"""Folder of homes on Lustre, if there is no OpenZFS file system."""
OPENZFS_ROOT = "/fsx"
"""Path of OpenZFS's root volume for mounts."""


@dataclass(frozen=True)
class Tree:
    """Folder of the old cluster, and its place in the new one."""

    name: str
    kind: Literal["lustre", "nfs"]
    device: str
    """Source of the mount."""
    below: str
    """Folder of the source; empty for all of it."""
    target: str
    """Folder on the new cluster's nodes."""
    left_out: tuple[str, ...]
    """Folders below the source that other steps copy."""


@dataclass(frozen=True)
class Compared:
    """Comparison of a tree with its copy."""

    num_entries: int
    """Number of files, folders and links of the source."""
    num_different: int
    """Number of those that are missing at the target, or differ from it."""
    num_added: int
    """Number of those that only the target has."""
    differences: Sequence[str]
    """First differences, as rsync itemizes them."""


def trees_of(
    source: Cluster, target: Cluster, source_storage: Storage, target_storage: Storage
) -> list[Tree]:
    """Return the trees to copy: none for EKS, whose nodes run no copies, nor for a shared file system."""
    if not isinstance(target, SlurmCluster):
        return []
    ids = {
        found.file_system_id
        for found in (target_storage.lustre, target_storage.home)
        if found is not None
    }
    shared = target.storage.shared_path
    homes = HOME_MOUNT_PATH if target.storage.home else f"{shared}/{LUSTRE_HOMES}"
    trees = []
    lustre = source_storage.lustre
    is_in_bucket = any(link.path == "/" for link in source_storage.links)
    if lustre and lustre.file_system_id not in ids and not is_in_bucket:
        left_out = tuple(link.path for link in source_storage.links)
        if target.storage.home and not source_storage.home:
            device = _lustre_device(lustre)
            left_out = (*left_out, f"/{LUSTRE_HOMES}")
            trees.append(Tree("homes", "lustre", device, LUSTRE_HOMES, homes, ()))
        trees.append(Tree("shared files", "lustre", _lustre_device(lustre), "", shared, left_out))
    home = source_storage.home
    if home and home.file_system_id not in ids:
        device = f"{home.dns_name}:{OPENZFS_ROOT}"
        trees.append(Tree("homes", "nfs", device, "", homes, ()))
    return trees


def _lustre_device(lustre: FileSystem) -> str:
    return f"{lustre.dns_name}@tcp:/{lustre.mount_name}"


def copy_tree(head: HeadNode, tree: Tree, say: Say) -> str:
    """Copy what is missing or has changed, as root on the new cluster's head node.

    Returns: a sentence on what was copied.

    Raises:
        ValueError: if the script fails, or the session breaks while the copy continues.
    """
    facts = _run(head, tree, "copy", say)
    return f"{int(facts['copied'][0]):,} files, {int(facts['bytes'][0]):,} bytes"


def compare_tree(head: HeadNode, tree: Tree, say: Say, *, contents: bool = False) -> Compared:
    """Compare a tree with its copy.

    Args:
        head: head node of the new cluster.
        tree: tree to compare.
        say: function that receives messages.
        contents: whether to read all files and name every difference. Otherwise sizes and times decide, and
            files that are newer at the target do not count, because another copy would leave them.

    Raises:
        ValueError: if the script fails.
    """
    facts = _run(head, tree, "compare-contents" if contents else "compare", say)
    return Compared(
        num_entries=int(facts["entries"][0]),
        num_different=int(facts["different"][0]),
        num_added=int(facts["added"][0]),
        differences=facts["difference"],
    )


def script_arguments(tree: Tree, action: Action, mark: str) -> list[str]:
    """Return the arguments of ``copy_tree.sh``."""
    return [action, tree.kind, tree.device, tree.below, tree.target, mark, *tree.left_out]


def _run(head: HeadNode, tree: Tree, action: Action, say: Say) -> dict[str, list[str]]:
    # No file's name looks like this.
    mark = f"|{secrets.token_hex(8)}|"
    facts: dict[str, list[str]] = defaultdict(list)
    said: list[str] = []

    def take(line: str) -> None:
        parts = line.split(mark)
        if len(parts) == 3:
            facts[parts[1]].append(parts[2])
        else:
            said.append(line)
            say(line)

    if head.run_as_root(SCRIPT.read_text(), script_arguments(tree, action, mark), take):
        raise ValueError(f"{head.name}: {tree.name}: {' '.join(said[-5:])}")
    return facts
