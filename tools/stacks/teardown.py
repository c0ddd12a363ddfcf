"""Delete a cluster's stacks, the last deployed first, except resources that their templates retain.

``python -m tools.stacks.teardown --cluster FILE [--dry-run] [--yes NAME]``

Links between Lustre and S3 are deleted before a bucket is emptied. The project's own links import no
deletions, but a link that someone created or changed may. Lustre would then delete the file of each deleted
object.
"""

import sys
import time
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

import boto3

from config.cluster import Cluster
from config.reading.loader import load_cluster
from config.resource_names import stack_names
from tools.aws_session import all_items, aws_client, if_present, open_session
from tools.command_line import cluster_parser, run_command
from tools.json_output import add_json_option, publish
from tools.stacks import teardown_plan
from tools.stacks.stack_contents import StackContents, StackResource

UNLINK_SECONDS = 3600.0
"""Time limit for the deletion of links. FSx first ends the imports and exports that are in progress, and
documents no maximum."""
STUDIO_SECONDS = 900.0
"""Time limit for the deletion of one kind of contents of Studio."""
STUDIO_POLL_SECONDS = 10.0


class StudioContents(NamedTuple):
    """Kind of contents of a Studio domain."""

    title: str
    """Name in messages."""
    operation: str
    """Name in SageMaker's operations, such as ``list_<name>s``."""
    key: str
    """Key of the list in SageMaker's response."""
    arguments: tuple[str, ...]
    """Fields of an item that its deletion takes as arguments."""


APPS = StudioContents("app", "app", "Apps", ("SpaceName", "UserProfileName", "AppType", "AppName"))
SPACES = StudioContents("space", "space", "Spaces", ("SpaceName",))
PROFILES = StudioContents("profile", "user_profile", "UserProfiles", ("UserProfileName",))
STUDIO_CONTENTS = (APPS, SPACES, PROFILES)
"""Contents of a Studio domain in the order of deletion."""
CLUSTER_TAG = "tag:cluster.k8s.amazonaws.com/name"
"""Filter by the tag that the VPC CNI writes on each interface that it creates."""
MOST_SHOWN = 8
"""Most resources of a stack that are printed one by one."""
RESOURCES_PER_LINE = 100
"""Resources after which a line with their number is printed."""
POLL_SECONDS = 10.0
LIMIT_SECONDS = 3 * 3600.0
"""Time limit for the deletion of a stack. A large cluster or file system takes well under an hour;
CloudFormation itself gives up after 36."""
BATCH = 1000
"""Most objects that one DeleteObjects takes."""


def main() -> int:
    parser = cluster_parser(
        "Delete everything that a cluster file deployed, except resources that it retains."
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    parser.add_argument(
        "--yes", metavar="NAME", help="name of the cluster, as confirmation without a prompt"
    )
    add_json_option(parser)
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    plan = teardown_plan.make_plan(session, cluster)
    deleted: list[str] = []
    publish(
        cluster=cluster.name,
        region=cluster.region,
        stacks=[stack.name for stack in plan.stacks],
        lost=[_published(resource) for resource in plan.deleted],
        kept=[
            {**_published(resource), "delete": teardown_plan.deletion_of(resource)}
            for resource in plan.kept
        ],
        service_logs=list(plan.service_logs),
        network_held_by=list(plan.holders),
        deleted=deleted,
    )
    print(teardown_plan.describe_plan(plan))
    if options.dry_run or not plan.stacks:
        return 0
    _confirm(cluster.name, options.yes)
    for stack in plan.stacks:
        _delete(session, stack, cluster)
        deleted.append(stack.name)
    print(f"\nDeleted {', '.join(stack.name for stack in plan.stacks)}.")
    if remains := teardown_plan.describe_remains(plan):
        print(f"\n{remains}")
    return 0


def _published(resource: StackResource) -> dict[str, str]:
    """Return a resource for ``--json``."""
    return {"id": resource.physical_id, "type": resource.resource_type}


def _confirm(name: str, given: str | None) -> None:
    """Raise ValueError unless the name of the cluster is given as an option, or typed."""
    if given is None:
        if not sys.stdin.isatty():
            raise ValueError(f"there is no terminal to confirm in; use a terminal, or --yes {name}")
        given = input(f"\nType the cluster's name ({name}) to delete all this: ").strip()
    if given != name:
        raise ValueError(f"got '{given}', the cluster is {name}; nothing was deleted")


def _delete(session: boto3.Session, stack: StackContents, cluster: Cluster) -> None:
    cloudformation = aws_client(session, "cloudformation")
    print(f"\n{stack.name}")
    if cluster.scheduler == "eks" and stack.name == stack_names(cluster).network:
        # With existing security groups, the stack has none, and these interfaces belong to others.
        for interface_id in delete_pod_interfaces(aws_client(session, "ec2"), stack, cluster.name):
            print(f"  deleted {interface_id}, which a pod had", flush=True)
    if stack.name == stack_names(cluster).studio:
        delete_studio_contents(aws_client(session, "sagemaker"), stack)
    # CloudFormation deletes empty buckets only.
    buckets = [
        bucket.physical_id
        for bucket in stack.of_type("AWS::S3::Bucket")
        if bucket.physical_id and not bucket.is_kept
    ]
    if buckets:
        for association_id in unlink_buckets(aws_client(session, "fsx"), buckets):
            print(f"  unlinked {association_id}: the file system keeps its files", flush=True)
    for bucket in buckets:
        count = empty_bucket(aws_client(session, "s3"), bucket)
        print(f"  emptied {bucket} ({count} objects and versions)", flush=True)
    delete_stack(cloudformation, stack)


def empty_bucket(s3: Any, bucket: str) -> int:
    """Delete all objects, versions and delete markers, and return their number.

    Raises:
        ValueError: if one of them cannot be deleted.
    """
    count = 0
    for page in s3.get_paginator("list_object_versions").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": BATCH}
    ):
        entries = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in entries]
        if not objects:
            continue
        response = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        if errors := response.get("Errors"):
            first = errors[0]
            raise ValueError(
                f"{bucket}: {len(errors)} objects cannot be deleted, such as {first.get('Key')}: "
                f"{first.get('Message')}; allow it, or empty the bucket in the console, and try again"
            )
        count += len(objects)
    return count


def delete_stack(cloudformation: Any, stack: StackContents) -> None:
    """Delete a stack, wait for the end, and print its progress.

    Raises:
        ValueError: if a resource cannot be deleted, with CloudFormation's reasons, or if it takes too long.
    """
    last = next((event["EventId"] for event in _events(cloudformation, stack, until=None)), None)
    cloudformation.delete_stack(StackName=stack.name)
    failures: list[str] = []
    progress = _Progress()
    deadline = time.monotonic() + LIMIT_SECONDS
    # The first response may still have the state before the deletion.
    in_progress = {"DELETE_IN_PROGRESS", stack.status}
    while True:
        # The state is read before the events, so that these explain it. A deleted stack is found only by id.
        status = cloudformation.describe_stacks(StackName=stack.stack_id)["Stacks"][0][
            "StackStatus"
        ]
        new_events = list(_events(cloudformation, stack, until=last))
        for event in reversed(new_events):
            progress.report(event)
            failures += _failure(event)
        if new_events:
            last = new_events[0]["EventId"]
        if status == "DELETE_COMPLETE":
            progress.conclude()
            return
        if status not in in_progress:
            progress.conclude()
            reasons = (
                "; ".join(failures)
                or f"it is {status}; see its events in the CloudFormation console"
            )
            raise ValueError(
                f"stack {stack.name} could not be deleted: {reasons}. Remove what is in the way and run "
                "`make teardown` again"
            )
        if time.monotonic() > deadline:
            raise ValueError(
                f"stack {stack.name} is still being deleted after {LIMIT_SECONDS / 3600:.0f} h; run "
                "`make teardown` again when that has ended"
            )
        in_progress = {"DELETE_IN_PROGRESS"}
        time.sleep(POLL_SECONDS)


def _events(
    cloudformation: Any, stack: StackContents, *, until: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the events after the one with the id ``until``, the newest first, page by page."""
    for page in cloudformation.get_paginator("describe_stack_events").paginate(
        StackName=stack.stack_id
    ):
        for event in page["StackEvents"]:
            if event["EventId"] == until:
                return
            yield event


class _Progress:
    """Lines of a deletion: the first resources one by one, and then a line for many of them."""

    def __init__(self) -> None:
        self._num_shown = 0
        self._num_more = 0

    def report(self, event: dict[str, Any]) -> None:
        """Print a resource whose deletion has ended, or count it."""
        status = event["ResourceStatus"]
        if status == "DELETE_IN_PROGRESS":
            return
        if self._num_shown < MOST_SHOWN or event["ResourceType"] == "AWS::CloudFormation::Stack":
            self._num_shown += 1
            print(
                f"  {status:18} {event['LogicalResourceId']} ({event['ResourceType']})", flush=True
            )
            return
        self._num_more += 1
        if self._num_more % RESOURCES_PER_LINE == 0:
            print(f"  and {self._num_more} more", flush=True)

    def conclude(self) -> None:
        if self._num_more % RESOURCES_PER_LINE:
            print(f"  and {self._num_more} more", flush=True)


def _failure(event: dict[str, Any]) -> list[str]:
    """Return the reason of an event if it is a failure."""
    if event["ResourceStatus"] != "DELETE_FAILED":
        return []
    if event["ResourceType"] == "AWS::CloudFormation::Stack":
        return []
    logical_id = event["LogicalResourceId"]
    return [f"{logical_id}: {event.get('ResourceStatusReason', 'no reason given')}"]


def delete_pod_interfaces(ec2: Any, network: StackContents, cluster_name: str) -> list[str]:
    """Delete interfaces that the VPC CNI left in the network's security group, and return their ids.

    The CNI deletes its interfaces itself, unless its node ends first. Such interfaces prevent the deletion of
    subnets and security group forever. Attached interfaces are left alone.
    """
    groups = [group.physical_id for group in network.of_type("AWS::EC2::SecurityGroup")]
    if not groups:
        return []
    filters = [
        {"Name": "group-id", "Values": groups},
        {"Name": "status", "Values": ["available"]},
        {"Name": CLUSTER_TAG, "Values": [cluster_name]},
    ]
    found = all_items(ec2, "describe_network_interfaces", "NetworkInterfaces", Filters=filters)
    left = [interface["NetworkInterfaceId"] for interface in found]
    for interface_id in left:
        ec2.delete_network_interface(NetworkInterfaceId=interface_id)
    return left


def delete_studio_contents(sagemaker: Any, stack: StackContents) -> None:
    """Delete a domain's apps, its spaces with their disks, and profiles that are not part of the stack.

    Raises:
        ValueError: if some of them still exist after ``STUDIO_SECONDS``.
    """
    # The registry's schema and the documentation differ in whether the name or the domain comes first.
    own_profiles = set()
    for profile in stack.of_type("AWS::SageMaker::UserProfile"):
        own_profiles.update(profile.physical_id.split("|"))
    for domain in stack.of_type("AWS::SageMaker::Domain"):
        if domain.physical_id:
            for kind in STUDIO_CONTENTS:
                _delete_of_kind(sagemaker, domain.physical_id, kind, own_profiles)


def _delete_of_kind(
    sagemaker: Any, domain_id: str, kind: StudioContents, own_profiles: set[str]
) -> None:
    """Delete a domain's contents of one kind, and wait for the end."""
    list_remaining = partial(_studio_contents, sagemaker, domain_id, kind, own_profiles)
    for item in list_remaining():
        if item["Status"] != "Deleting":
            arguments = {name: str(item[name]) for name in kind.arguments if item.get(name)}
            getattr(sagemaker, f"delete_{kind.operation}")(DomainId=domain_id, **arguments)
            print(f"  deleting {kind.title} {next(iter(arguments.values()))} of Studio", flush=True)
    waited = 0.0
    while remaining := list_remaining():
        if waited >= STUDIO_SECONDS:
            raise ValueError(
                f"{len(remaining)} {kind.title}s of Studio's domain {domain_id} are still there after"
                f" {waited / 60:.0f} minutes: see them in SageMaker's console, then run this again"
            )
        time.sleep(STUDIO_POLL_SECONDS)
        waited += STUDIO_POLL_SECONDS


def _studio_contents(
    sagemaker: Any, domain_id: str, kind: StudioContents, own_profiles: set[str]
) -> list[dict[str, Any]]:
    """Return the remaining contents of a domain of one kind, except profiles that are part of the stack."""
    found = all_items(sagemaker, f"list_{kind.operation}s", kind.key, DomainIdEquals=domain_id)
    remaining = [item for item in found if item["Status"] != "Deleted"]
    if kind is PROFILES:
        return [item for item in remaining if item["UserProfileName"] not in own_profiles]
    return remaining


def unlink_buckets(fsx: Any, buckets: Collection[str]) -> list[str]:
    """Delete the data repository associations with any of these buckets, wait for the end, and keep the
    files.

    Returns:
        Ids of the deleted associations.

    Raises:
        ValueError: if FSx cannot delete one, or takes longer than an hour.
    """
    links = _links(fsx, buckets)
    for association_id, link in links.items():
        if link["Lifecycle"] != "DELETING":
            if_present(
                fsx.delete_data_repository_association,
                AssociationId=association_id,
                DeleteDataInFileSystem=False,
            )
    deadline = time.monotonic() + UNLINK_SECONDS
    while remaining := {key: link for key, link in _links(fsx, buckets).items() if key in links}:
        for association_id, link in remaining.items():
            if link["Lifecycle"] == "FAILED":
                reason = link.get("FailureDetails", {}).get("Message", "no reason given")
                raise ValueError(
                    f"data repository association {association_id} cannot be deleted: {reason}; nothing was "
                    "emptied; repair that and run `make teardown` again"
                )
        if time.monotonic() > deadline:
            hours = UNLINK_SECONDS / 3600
            raise ValueError(
                f"{', '.join(remaining)} still being deleted after {hours:.0f} h; nothing was emptied; run"
                " `make teardown` again"
            )
        time.sleep(POLL_SECONDS)
    return list(links)


def _links(fsx: Any, buckets: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return all associations with these buckets by id."""
    links: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    # boto3 has no paginator for this operation.
    while True:
        page = fsx.describe_data_repository_associations(**token)
        links += page["Associations"]
        if not page.get("NextToken"):
            break
        token = {"NextToken": page["NextToken"]}
    return {
        link["AssociationId"]: link
        for link in links
        if link.get("DataRepositoryPath", "").removeprefix("s3://").partition("/")[0] in buckets
    }


if __name__ == "__main__":
    run_command(main)
