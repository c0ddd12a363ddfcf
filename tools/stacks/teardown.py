"""Delete a cluster's stacks, the last deployed first. Keeps what their templates say to keep.

``python -m tools.stacks.teardown --cluster FILE [--dry-run] [--yes NAME]``

Links between Lustre and S3 go before a bucket is emptied. Ours import no deletions. One that someone else
made or changed may, and then an object that is deleted from the bucket takes its file with it.
"""

import sys
import time
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import boto3

from config.cluster import Cluster
from config.reading.loader import load_cluster
from config.resource_names import stack_names
from tools.aws_session import all_items, aws_client, if_present, open_session
from tools.command_line import cluster_parser, run_command
from tools.stacks import teardown_plan
from tools.stacks.stack_contents import StackContents

UNLINK_SECONDS = 3600.0
"""FSx first ends the imports and exports that are under way; it names no longest time."""
SECONDS_TO_GO = 900
SECONDS_BETWEEN_LOOKS = 10
STUDIO_CONTENTS = {
    "app": ("app", "Apps", ("SpaceName", "UserProfileName", "AppType", "AppName")),
    "space": ("space", "Spaces", ("SpaceName",)),
    "profile": ("user_profile", "UserProfiles", ("UserProfileName",)),
}
"""Contents of a Studio domain in the order of deletion: SageMaker's name, key of the list, and arguments."""
CLUSTER_TAG = "tag:cluster.k8s.amazonaws.com/name"
"""The VPC CNI writes it on every interface that it makes."""
POLL_SECONDS = 10.0
LIMIT_SECONDS = 3 * 3600.0
"""A large cluster or file system takes well under an hour; CloudFormation itself gives up after 36."""
BATCH = 1000
"""Most objects that one DeleteObjects takes."""


def main() -> int:
    parser = cluster_parser("Delete everything that a cluster file deployed, except what it says to keep.")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen and stop")
    parser.add_argument("--yes", metavar="NAME", help="the cluster's name, instead of typing it when asked")
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    plan = teardown_plan.make_plan(session, cluster)
    print(teardown_plan.describe_plan(plan))
    if options.dry_run or not plan.stacks:
        return 0
    name = cluster.name
    given = options.yes
    if given is None:
        if not sys.stdin.isatty():
            raise ValueError(f"there is no terminal to confirm in; use a terminal, or --yes {name}")
        given = input(f"\nType the cluster's name ({name}) to delete all this: ").strip()
    if given != name:
        raise ValueError(f"got '{given}', the cluster is {name}; nothing was deleted")
    _delete(session, plan, cluster)
    print(f"\nDeleted {', '.join(stack.name for stack in plan.stacks)}.")
    if remains := teardown_plan.describe_remains(plan):
        print(f"\n{remains}")
    return 0


def _delete(session: boto3.Session, plan: teardown_plan.TeardownPlan, cluster: Cluster) -> None:
    cloudformation = aws_client(session, "cloudformation")
    for stack in plan.stacks:
        print(f"\n{stack.name}")
        if cluster.scheduler == "eks" and stack.name == stack_names(cluster).network:
            for interface_id in delete_pod_interfaces(aws_client(session, "ec2"), stack, cluster.name):
                print(f"  deleted {interface_id}, which a pod had", flush=True)
        if stack.name == stack_names(cluster).studio:
            delete_studio_contents(aws_client(session, "sagemaker"), stack)
        # CloudFormation deletes empty buckets only.
        going = [bucket for bucket in stack.of_type("AWS::S3::Bucket") if not bucket.is_kept]
        buckets = [bucket.physical_id for bucket in going if bucket.physical_id]
        for association_id in unlink_buckets(aws_client(session, "fsx"), buckets) if buckets else []:
            print(f"  unlinked {association_id}: the file system keeps its files", flush=True)
        for bucket in buckets:
            count = empty_bucket(aws_client(session, "s3"), bucket)
            print(f"  emptied {bucket} ({count} objects and versions)", flush=True)
        delete_stack(cloudformation, stack)


def empty_bucket(s3: Any, bucket: str) -> int:
    """Delete all objects, versions and delete markers; returns their number.

    Raises:
        ValueError: if S3 keeps any of them.
    """
    count = 0
    for page in s3.get_paginator("list_object_versions").paginate(
        Bucket=bucket, PaginationConfig={"PageSize": BATCH}
    ):
        entries = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        objects = [{"Key": entry["Key"], "VersionId": entry["VersionId"]} for entry in entries]
        if not objects:
            continue
        answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        if errors := answer.get("Errors"):
            first = errors[0]
            raise ValueError(
                f"{bucket}: {len(errors)} objects cannot be deleted, such as {first.get('Key')}: "
                f"{first.get('Message')}; allow it, or empty the bucket in the console, and try again"
            )
        count += len(objects)
    return count


def delete_stack(cloudformation: Any, stack: StackContents) -> None:
    """Delete a stack and wait until it is gone, printing each resource as it goes.

    Raises:
        ValueError: if something in it cannot be deleted, with CloudFormation's reasons, or takes too long.
    """
    last = next((event["EventId"] for event in _events(cloudformation, stack, until=None)), None)
    cloudformation.delete_stack(StackName=stack.name)
    failures: list[str] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    # The first look may still show the state of before.
    going_on = {"DELETE_IN_PROGRESS", stack.status}
    while True:
        # The state first: the events that are then read explain it. By id: a deleted stack has no name.
        status = cloudformation.describe_stacks(StackName=stack.stack_id)["Stacks"][0]["StackStatus"]
        fresh = list(_events(cloudformation, stack, until=last))
        for event in reversed(fresh):
            failures += _report(event)
        last = fresh[0]["EventId"] if fresh else last
        if status == "DELETE_COMPLETE":
            return
        if status not in going_on:
            reasons = "; ".join(failures) or f"it is {status}; see its events in the CloudFormation console"
            raise ValueError(
                f"stack {stack.name} could not be deleted: {reasons}. Remove what is in the way and run "
                "`make teardown` again"
            )
        if time.monotonic() > deadline:
            raise ValueError(
                f"stack {stack.name} is still being deleted after {LIMIT_SECONDS / 3600:.0f} h; run "
                "`make teardown` again when that has ended"
            )
        going_on = {"DELETE_IN_PROGRESS"}
        time.sleep(POLL_SECONDS)


def _events(cloudformation: Any, stack: StackContents, *, until: str | None) -> Iterator[dict[str, Any]]:
    """Events after that one, the newest first; no more pages are read than that takes."""
    for page in cloudformation.get_paginator("describe_stack_events").paginate(StackName=stack.stack_id):
        for event in page["StackEvents"]:
            if event["EventId"] == until:
                return
            yield event


def _report(event: dict[str, Any]) -> list[str]:
    """Print an event; returns the reason if it is a failure."""
    status = event["ResourceStatus"]
    logical_id = event["LogicalResourceId"]
    print(f"  {status:18} {logical_id} ({event['ResourceType']})", flush=True)
    if status != "DELETE_FAILED" or event["ResourceType"] == "AWS::CloudFormation::Stack":
        return []
    return [f"{logical_id}: {event.get('ResourceStatusReason', 'no reason given')}"]


def delete_pod_interfaces(ec2: Any, network: StackContents, cluster_name: str) -> list[str]:
    """Delete interfaces that the VPC CNI left in the network's security group, and return them.

    It takes its interfaces away itself, unless its node ends first. Then they have no owner, and hold subnets
    and security group for ever. Only those that are attached to nothing are deleted.
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
    """Delete what runs in a domain, its spaces with their disks, and profiles that are no part of the stack.

    Raises:
        ValueError: if something does not go.
    """
    # The registry's schema and the documentation differ in whether the name or the domain comes first.
    own = {
        part for one in stack.of_type("AWS::SageMaker::UserProfile") for part in one.physical_id.split("|")
    }
    for domain_id in filter(None, (domain.physical_id for domain in stack.of_type("AWS::SageMaker::Domain"))):
        for title, (kind, _, names) in STUDIO_CONTENTS.items():
            there = partial(_studio_contents, sagemaker, domain_id, title, own)
            for item in there():
                if item["Status"] != "Deleting":
                    given = {name: str(item[name]) for name in names if item.get(name)}
                    getattr(sagemaker, f"delete_{kind}")(DomainId=domain_id, **given)
                    print(f"  deleting {title} {next(iter(given.values()))} of Studio", flush=True)
            waited = 0.0
            while left := there():
                if waited >= SECONDS_TO_GO:
                    raise ValueError(
                        f"{len(left)} {title}s of Studio's domain {domain_id} are still there after"
                        f" {waited / 60:.0f} minutes: see them in SageMaker's console, then run this again"
                    )
                time.sleep(SECONDS_BETWEEN_LOOKS)
                waited += SECONDS_BETWEEN_LOOKS


def _studio_contents(sagemaker: Any, domain_id: str, title: str, own: set[str]) -> list[dict[str, Any]]:
    """Return what a domain still has of a kind, except profiles that are part of the stack."""
    kind, key, _ = STUDIO_CONTENTS[title]
    found = all_items(sagemaker, f"list_{kind}s", key, DomainIdEquals=domain_id)
    others = [item for item in found if title != "profile" or item["UserProfileName"] not in own]
    return [item for item in others if item["Status"] != "Deleted"]


def unlink_buckets(fsx: Any, buckets: Collection[str]) -> list[str]:
    """Delete the data repository associations with any of these buckets; their files stay where they are.

    Returns the ids of the associations, when FSx no longer has them.

    Raises:
        ValueError: if FSx cannot delete one, or takes longer than an hour.
    """
    links = _links(fsx, buckets)
    for association_id, link in links.items():
        if link["Lifecycle"] != "DELETING":
            options = {"AssociationId": association_id, "DeleteDataInFileSystem": False}
            if_present(fsx.delete_data_repository_association, **options)
    deadline = time.monotonic() + UNLINK_SECONDS
    while left := {key: link for key, link in _links(fsx, buckets).items() if key in links}:
        for association_id, link in left.items():
            if link["Lifecycle"] == "FAILED":
                reason = link.get("FailureDetails", {}).get("Message", "no reason given")
                raise ValueError(
                    f"data repository association {association_id} cannot be deleted: {reason}; nothing was "
                    "emptied; repair that and run `make teardown` again"
                )
        if time.monotonic() > deadline:
            raise ValueError(
                f"{', '.join(left)} still being deleted after {UNLINK_SECONDS / 3600:.0f} h; nothing was "
                "emptied; run `make teardown` again"
            )
        time.sleep(POLL_SECONDS)
    return list(links)


def _links(fsx: Any, buckets: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return all associations with these buckets by id."""
    links: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    while True:  # boto3 has no paginator for this operation
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
