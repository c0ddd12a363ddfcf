"""Steps of a migration, each of which looks at what is left before it acts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3

from config.cluster_kinds import AnyCluster
from config.slurm_cluster import SlurmCluster
from tools.aws_session import aws_client, open_session
from tools.migrate import bucket, slurm_accounts, trees
from tools.migrate.record import Record
from tools.migrate.storage import Storage, read_storage
from tools.nodes.cluster_nodes import choose_node, read_cluster_nodes
from tools.nodes.head_node import HeadNode
from tools.nodes.node_session import start_session


@dataclass(frozen=True)
class Found:
    """Comparison of two clusters."""

    left: list[str] = field(default_factory=list)
    """Parts that another call would copy or add."""
    notes: list[str] = field(default_factory=list)
    """Differences that stay."""


@dataclass(frozen=True)
class Step:
    """Part of a migration."""

    name: str
    text: str
    """Source and target, for the plan."""
    look: Callable[[], Found]
    """Compare both clusters, and change nothing."""
    act: Callable[[], str]
    """Do what is left, and return a sentence on what was done."""


@dataclass(frozen=True)
class Side:
    """One of the two clusters."""

    cluster: AnyCluster
    session: boto3.Session
    storage: Storage
    profile: str | None

    def client(self, service: str) -> Any:
        return aws_client(self.session, service)

    def head(self) -> HeadNode:
        """Return the head node, through a session as root."""
        found = read_cluster_nodes(self.client("sagemaker"), self.cluster.name)
        node = choose_node(found)
        start = start_session(found, node, region=self.cluster.region, profile=self.profile)
        return HeadNode(node.name, tuple(start))


def open_side(cluster: AnyCluster, profile: str | None) -> Side:
    """Return a deployed cluster with its storage.

    Raises:
        ValueError: if it is not deployed.
    """
    session = open_session(region=cluster.region, profile=profile)
    return Side(cluster, session, read_storage(session, cluster), profile)


def plan_steps(source: Side, target: Side, record: Record, *, contents: bool) -> list[Step]:
    """Return the steps in their order.

    Args:
        source: old cluster.
        target: new cluster.
        record: record of earlier calls.
        contents: whether comparisons read the content of all files.
    """
    steps = list(_bucket_steps(source, target, record))
    found = trees.trees_of(source.cluster, target.cluster, source.storage, target.storage)
    if found:
        head = target.head()
        steps += [_tree_step(head, tree, contents=contents) for tree in found]
    if isinstance(source.cluster, SlurmCluster) and isinstance(target.cluster, SlurmCluster):
        steps.append(_accounting_step(source, target))
    return steps


def _bucket_steps(source: Side, target: Side, record: Record) -> Iterator[Step]:
    """Yield export, copy and import of the data; a file system that both clusters use needs none."""
    lustre = [side.storage.lustre for side in (source, target)]
    is_shared = None not in lustre and lustre[0] == lustre[1]
    same_bucket = source.storage.bucket == target.storage.bucket
    if is_shared and same_bucket:
        return
    if source.storage.linked_path():
        yield _task_step("export", bucket.EXPORT, source, record)
    if not same_bucket:
        yield _objects_step(source, target)
    if target.storage.linked_path():
        yield _task_step("import", bucket.IMPORT, target, record)


def _task_step(name: str, kind: str, side: Side, record: Record) -> Step:
    storage = side.storage
    what = "into" if kind == bucket.EXPORT else "from"
    assert storage.lustre

    def look() -> Found:
        return Found() if name in record.done else Found([f"{name} has not run"])

    return Step(
        name,
        f"files of {storage.linked_path()} on {storage.lustre.file_system_id} {what} s3://{storage.bucket}",
        look,
        lambda: bucket.run_task(side.client("fsx"), record, name, kind, storage),
    )


def _objects_step(source: Side, target: Side) -> Step:
    def look() -> Found:
        found = bucket.compare_buckets(
            source.client("s3"), target.client("s3"), source.storage, target.storage
        )
        if not found.missing:
            return Found()
        text = f"{len(found.missing):,} of {found.num_objects:,} objects are missing or differ"
        return Found([f"{text}: {bucket.named(found.missing)}"])

    def act() -> str:
        bucket.copy_objects(source.storage, target.storage, profile=target.profile)
        left = look().left
        if left:
            raise ValueError(f"objects: {left[0]}. Run this again to continue")
        return "all objects are there, with equal sizes"

    return Step(
        "objects",
        f"from s3://{source.storage.bucket} to s3://{target.storage.bucket}, within S3",
        look,
        act,
    )


def _tree_step(head: HeadNode, tree: trees.Tree, *, contents: bool) -> Step:
    def look() -> Found:
        found = trees.compare_tree(head, tree, _indented, contents=contents)
        left, notes = [], []
        if found.num_different:
            left.append(
                f"{found.num_different:,} of {found.num_entries:,} entries are missing or differ: "
                f"{'; '.join(found.differences)}"
            )
        if found.num_added:
            notes.append(f"{found.num_added:,} entries are only in {tree.target}, and stay")
        return Found(left, notes)

    without = f", without {' and '.join(tree.left_out)}" if tree.left_out else ""
    return Step(
        tree.name,
        f"{tree.device} {tree.below} into {tree.target} by {head.name}{without}",
        look,
        lambda: trees.copy_tree(head, tree, _indented),
    )


def _accounting_step(source: Side, target: Side) -> Step:
    def look() -> Found:
        ours, theirs = (slurm_accounts.read_accounts(side.head()) for side in (source, target))
        left = slurm_accounts.compare_accounts(ours, theirs)
        names = [*(f"QOS {name}" for name in left.missing_qos), *(a.label for a in left.missing)]
        return Found([f"{name} is missing" for name in names], list(left.different))

    def act() -> str:
        ours, theirs = (slurm_accounts.read_accounts(side.head()) for side in (source, target))
        return slurm_accounts.add_missing(target.head(), ours, theirs)

    return Step(
        "accounting", "QOS, accounts and users of Slurm that the new cluster lacks", look, act
    )


def _indented(line: str) -> None:
    print(f"  {line}", flush=True)
