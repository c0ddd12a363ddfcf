"""Install another image on groups of nodes: ``python -m tools.nodes.patch GROUP [GROUP ...]``.

The service does not wait for jobs. With ``rolling_update`` in the cluster file, it takes nodes in batches.
Otherwise it takes all at once, which requires an option, and no running jobs or a second option.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from config.cluster import InstanceGroup, RollingUpdate
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster, EksInstanceGroup
from config.reading.loader import load_cluster
from config.reading.violation import shown
from config.slurm_cluster import SlurmCluster
from config.text_forms import RELEASE_VERSION
from tools.aws_session import aws_client, open_session
from tools.command_line import cluster_parser, confirm, run_command
from tools.json_output import add_json_option, publish
from tools.nodes.actions import add_request_options, open_placement
from tools.nodes.cluster_nodes import Node, read_cluster_nodes
from tools.nodes.images import ImageUse, image_uses

JOBS_RUN = 1
"""Exit status if jobs run on nodes that would all be updated at once."""
NUM_SHOWN = 20
"""Most jobs that are listed."""
CONTROLLER_IS_LOST = (
    "The root volume of the controller is replaced: the queue of jobs is lost, and without "
    "accounting_database the accounting, too. docs/patching.md shows how to save both before."
)
CONTROLLER_FIRST = (
    "The controller's group keeps its image. slurmctld rejects a newer slurmd, so patch the controller first "
    "if the new image has a newer Slurm."
)


@dataclass(frozen=True)
class Update:
    """Update of some groups' image."""

    groups: list[InstanceGroup]
    image_id: str | None
    """Image of the account; null is an image of HyperPod."""
    release: str | None
    """Release of HyperPod's image for all groups; null is the release in the cluster file, or the newest."""
    batches: RollingUpdate | None
    """Batches of each group; null updates all nodes at once."""


def main() -> int:
    options = _options()
    cluster = load_cluster(options.cluster)
    update = _chosen_update(cluster, options)
    names = {group.name for group in update.groups}
    sagemaker = aws_client(
        open_session(region=cluster.region, profile=options.profile), "sagemaker"
    )
    found = read_cluster_nodes(sagemaker, cluster.name)
    nodes = [node for node in found.nodes if node.group in names]
    if not nodes:
        raise ValueError(f"GROUP: {', '.join(sorted(names))}: no nodes in {cluster.name} to patch")
    uses = [use for use in image_uses(sagemaker, cluster.name) if use.group in names]
    publish(images=[asdict(use) for use in uses])
    with_jobs = {group.name for group in update.groups if group.runs_jobs}
    workers = [node for node in nodes if node.group in with_jobs]
    jobs: list[str] = []
    if workers:
        with open_placement(cluster, found, workers, options) as placement:
            jobs = placement.jobs(workers)
    publish(jobs=jobs)
    print("\n".join(_explanation(cluster, update, nodes, uses, jobs)))
    if jobs and update.batches is None and not options.now:
        print(
            "NOT DONE: jobs run. Let them end, add rolling_update to the group, or repeat with --now",
            file=sys.stderr,
        )
        return JOBS_RUN
    confirm("patch", options.yes)
    sagemaker.update_cluster_software(**update_request(cluster.name, update))
    publish(groups=[group.name for group in update.groups])
    print("The update has begun. Progress: make status, and make connect ARGS=--list")
    return 0


def _options() -> argparse.Namespace:
    parser = cluster_parser("Install another image on groups of nodes.")
    parser.add_argument(
        "groups", nargs="*", metavar="group", help="groups of the cluster file to update"
    )
    parser.add_argument(
        "--release",
        metavar="N.N.N",
        help="release of HyperPod's image (default: image_release_version of the group, or the newest one)",
    )
    parser.add_argument(
        "--all-at-once",
        action="store_true",
        help="update all nodes of the groups at the same time instead of in batches",
    )
    add_request_options(parser, now="end running jobs, too; only for --all-at-once")
    add_json_option(parser)
    return parser.parse_args()


def _chosen_update(cluster: AnyCluster, options: argparse.Namespace) -> Update:
    """Return the update that options and cluster file describe.

    Raises:
        ValueError: if a group is unknown, or one request cannot update all groups.
    """
    by_name: dict[str, InstanceGroup] = {group.name: group for group in cluster.instance_groups}
    known = ", ".join(by_name)
    if not options.groups:
        raise ValueError(f"GROUP: name the groups to patch; {cluster.name} has {known}")
    for name in options.groups:
        if name not in by_name:
            raise ValueError(f"GROUP: got {name}; {cluster.name} has {known}")
    groups = [by_name[name] for name in dict.fromkeys(options.groups)]
    first = groups[0]
    if any(group.rolling_update != first.rolling_update for group in groups) and (
        not options.all_at_once
    ):
        raise ValueError(
            f"GROUP: {_listed(groups)} have different values of rolling_update, and a request has one; patch "
            "them one after the other"
        )
    if any(group.image_id != first.image_id for group in groups):
        raise ValueError(
            f"GROUP: {_listed(groups)} have different values of image_id, and a request has one; patch them "
            "one after the other"
        )
    if first.rolling_update is None and not options.all_at_once:
        raise ValueError(
            f"GROUP: {_listed(groups)}: without rolling_update the service updates all nodes at the same "
            "time; add it to the cluster file, or use ARGS=--all-at-once"
        )
    if options.now and not options.all_at_once:
        raise ValueError("--now: batches do not wait for jobs anyway; omit it")
    if options.release:
        _refuse_release(groups, options.release)
    batches = None if options.all_at_once else first.rolling_update
    return Update(groups, first.image_id, options.release, batches)


def _listed(groups: Sequence[InstanceGroup]) -> str:
    return ", ".join(group.name for group in groups)


def _refuse_release(groups: Sequence[InstanceGroup], release: str) -> None:
    """Raise ValueError for a release that has another form, or that the cluster file contradicts."""
    if not re.fullmatch(RELEASE_VERSION.pattern, release):
        raise ValueError(
            f"--release: got {shown(release)}; {RELEASE_VERSION.meaning}, for example "
            f"{RELEASE_VERSION.examples[0]}"
        )
    for group in groups:
        if group.image_id:
            raise ValueError(
                f"--release: the cluster file sets image_id ({group.image_id}) for {group.name}, an image "
                "without a release; omit --release, or remove image_id"
            )
        if (pinned := _pinned_release(group)) not in (None, release):
            raise ValueError(
                f"--release: got {release}; the cluster file has image_release_version {pinned} for "
                f"{group.name}; omit --release, or change the file and run make deploy"
            )


def _pinned_release(group: InstanceGroup) -> str | None:
    """Return the release that the cluster file requires; only files of EKS clusters can."""
    return group.image_release_version if isinstance(group, EksInstanceGroup) else None


def update_request(cluster_name: str, update: Update) -> dict[str, Any]:
    """Return the parameters of UpdateClusterSoftware."""
    groups: list[dict[str, str]] = []
    for group in update.groups:
        specification = {"InstanceGroupName": group.name}
        if release := update.release or _pinned_release(group):
            specification["ImageReleaseVersion"] = release
        groups.append(specification)
    request: dict[str, Any] = {"ClusterName": cluster_name, "InstanceGroups": groups}
    if update.image_id:
        request["ImageId"] = update.image_id
    if update.batches:
        size = {"Type": update.batches.batch_size.unit, "Value": update.batches.batch_size.value}
        request["DeploymentConfig"] = {
            "RollingUpdatePolicy": {"MaximumBatchSize": size, "RollbackMaximumBatchSize": size},
            "WaitIntervalInSeconds": update.batches.wait_seconds,
        }
        if update.batches.rollback_alarms:
            alarms = [{"AlarmName": name} for name in update.batches.rollback_alarms]
            request["DeploymentConfig"]["AutoRollbackConfiguration"] = alarms
    return request


def _explanation(
    cluster: AnyCluster,
    update: Update,
    nodes: Sequence[Node],
    uses: Sequence[ImageUse],
    jobs: Sequence[str],
) -> Iterator[str]:
    """Yield what the update does to nodes and jobs, before users confirm it."""
    yield f"patch: {_listed(update.groups)} of {cluster.name}, {len(nodes)} node(s)"
    for use in uses:
        yield f"  {use.group}: {use.num_nodes} node(s) with release {use.release}, {use.status}"
    yield "The service replaces the root volume of each node, and node setup runs again."
    yield _batches_text(update.batches)
    if isinstance(cluster, SlurmCluster):
        yield from _controller_text(cluster, update.groups)
    if not jobs:
        yield "No jobs run there now. Jobs that start meanwhile are interrupted."
        return
    what = (
        "Their operator starts pods elsewhere, and training resumes from its last checkpoint."
        if isinstance(cluster, EksCluster)
        else "Slurm requeues jobs unless they forbid it, and training resumes from its last checkpoint."
    )
    yield f"The update interrupts the jobs of each node. {what} Running now:"
    yield from (f"  {job}" for job in jobs[:NUM_SHOWN])
    if len(jobs) > NUM_SHOWN:
        yield f"  and {len(jobs) - NUM_SHOWN} more"


def _batches_text(batches: RollingUpdate | None) -> str:
    if batches is None:
        return "It does not wait for jobs, and takes all nodes at the same time."
    size, unit = batches.batch_size.value, "nodes"
    if batches.max_nodes is None:
        unit = "% of the nodes"
    alarms = ", ".join(batches.rollback_alarms)
    back = f" If {alarms} is raised, it returns to the earlier image." if alarms else ""
    return (
        f"It does not wait for jobs, and takes up to {size} {unit} of a group at the same time, with "
        f"{batches.wait_seconds} seconds between batches.{back}"
    )


def _controller_text(cluster: SlurmCluster, groups: Sequence[InstanceGroup]) -> Iterator[str]:
    controllers = {group.name for group in cluster.instance_groups if group.role == "controller"}
    yield CONTROLLER_IS_LOST if controllers & {group.name for group in groups} else CONTROLLER_FIRST


if __name__ == "__main__":
    run_command(main)
