"""Delete a cluster's stacks, the last deployed first. Keeps what their templates say to keep.

``python -m tools.stacks.teardown --cluster FILE [--dry-run] [--yes NAME]``
"""

import sys

import boto3

from config.cluster import Cluster
from config.reading.loader import load_cluster
from config.resource_names import stack_names
from tools.aws_session import aws_client, open_session
from tools.command_line import cluster_parser, run_command
from tools.stacks.stack_deletion import (
    delete_pod_interfaces,
    delete_stack,
    delete_studio_contents,
    empty_bucket,
    unlink_buckets,
)
from tools.stacks.teardown_plan import (
    TeardownPlan,
    buckets_to_empty,
    describe_plan,
    describe_remains,
    make_plan,
)


def main() -> int:
    parser = cluster_parser("Delete everything that a cluster file deployed, except what it says to keep.")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen and stop")
    parser.add_argument("--yes", metavar="NAME", help="the cluster's name, instead of typing it when asked")
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    plan = make_plan(session, cluster)
    print(describe_plan(plan))
    if options.dry_run or not plan.stacks:
        return 0
    name, given = cluster.name, options.yes
    if given is None:
        if not sys.stdin.isatty():
            raise ValueError(f"there is no terminal to confirm in; use a terminal, or --yes {name}")
        given = input(f"\nType the cluster's name ({name}) to delete all this: ").strip()
    if given != name:
        raise ValueError(f"got '{given}', the cluster is {name}; nothing was deleted")
    _delete(session, plan, cluster)
    print(f"\nDeleted {', '.join(stack.name for stack in plan.stacks)}.")
    if remains := describe_remains(plan):
        print(f"\n{remains}")
    return 0


def _delete(session: boto3.Session, plan: TeardownPlan, cluster: Cluster) -> None:
    cloudformation = aws_client(session, "cloudformation")
    for stack in plan.stacks:
        print(f"\n{stack.name}")
        if cluster.scheduler == "eks" and stack.name == stack_names(cluster).network:
            for interface_id in delete_pod_interfaces(aws_client(session, "ec2"), stack, cluster.name):
                print(f"  deleted {interface_id}, which a pod had", flush=True)
        if stack.name == stack_names(cluster).studio:
            delete_studio_contents(aws_client(session, "sagemaker"), stack, _say)
        buckets = buckets_to_empty(stack)
        for association_id in unlink_buckets(aws_client(session, "fsx"), buckets) if buckets else []:
            print(f"  unlinked {association_id}: the file system keeps its files", flush=True)
        for bucket in buckets:
            count = empty_bucket(aws_client(session, "s3"), bucket)
            print(f"  emptied {bucket} ({count} objects and versions)", flush=True)
        delete_stack(cloudformation, stack)


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    run_command(main)
