"""Deploy or destroy a cluster's stacks with the CDK, and do what CloudFormation leaves to the user.

``python -m tools.stacks.deploy deploy --cluster FILE [options of cdk deploy]`` deletes log groups that an
earlier EKS cluster left, deploys stacks that stop importing a value before the stack that exports it, and
prints the state of each group of nodes. ``... destroy STACK`` deletes the log group that EKS creates again
for late entries. ``... bootstrap [options of cdk bootstrap]`` adds the options of the file's permissions
boundary. The exit status is that of the CDK, or 1 if workers are missing.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.kubernetes import NO_USERS
from config.reading.loader import load_cluster
from config.resource_names import ResourceNames, construct_ids, stack_names
from tools.aws_session import aws_client, explain, if_present, open_session, require_credentials
from tools.command_line import cluster_parser, format_table, run_command
from tools.json_output import add_json_option, is_recording, publish
from tools.nodes.activity import activity
from tools.stacks.diff import (
    ASSEMBLY,
    CDK,
    Pair,
    deployed_and_new,
    deployed_moves,
    require_charts,
)
from tools.stacks.replacements import exports_of, imported_exports
from tools.stacks.service_limits import groups_set_to_zero
from tools.stacks.stack_contents import deployed_template
from tools.stacks.stack_states import stack_states

SECONDS_OF_LATE_LOGS = 60
"""Time after which EKS has written the last entries of a deleted control plane, as observed by users
(terraform-aws-modules/terraform-aws-eks issue 2763)."""
SECONDS_BETWEEN_LOOKS = 30
POLICIES_OF_AWS = "arn:aws:iam::aws:"
"""Beginning of the ARN of AWS's own policies, which `cdk bootstrap` cannot use as boundaries."""
WORKERS_MISSING = 1
"""Exit status if workers are missing and the cluster file requires them (``wait``)."""


def main() -> int:
    parser = cluster_parser(
        "Bootstrap an account for a cluster file, or deploy or destroy its stacks."
    )
    parser.add_argument(
        "action", choices=["bootstrap", "deploy", "destroy"], help="command of the CDK"
    )
    parser.add_argument("--context", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument(
        "--end-scaled-nodes",
        action="store_true",
        help="update the cluster although this may end nodes that Karpenter started, with their jobs",
    )
    add_json_option(parser)
    options, rest = parser.parse_known_args()
    cluster = load_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    require_credentials(session)
    publish(cluster=cluster.name, region=cluster.region)
    profile = ["--profile", options.profile] if options.profile else []
    context = [
        f"--context=cluster={options.cluster}",
        *(f"--context={value}" for value in options.context),
    ]
    if options.action == "deploy":
        status = _deploy(
            cluster, session, context, profile, rest, may_end_nodes=options.end_scaled_nodes
        )
        _publish_stacks(session, cluster)
        return status
    if options.action == "bootstrap":
        with_boundary = [*boundary_options(cluster), *rest]
        print(" ".join(["cdk bootstrap", *with_boundary]), flush=True)
        return _cdk("bootstrap", *context, *profile, *with_boundary)
    status = _cdk("destroy", *context, *profile, *rest)
    if status == 0 and isinstance(cluster, EksCluster) and not cluster.kubernetes.existing:
        _delete_late_logs(session, cluster)
    _publish_stacks(session, cluster)
    return status


def _publish_stacks(session: boto3.Session, cluster: Cluster) -> None:
    """Publish the states of the stacks for ``--json``; a refusal does not change the command's own end."""
    if not is_recording():
        return
    try:
        publish(stacks=stack_states(aws_client(session, "cloudformation"), stack_names(cluster)))
    except (BotoCoreError, ClientError) as error:
        print(f"note: the states of the stacks cannot be read: {explain(error)}", file=sys.stderr)


def _deploy(
    cluster: Cluster,
    session: boto3.Session,
    context: list[str],
    profile: list[str],
    rest: list[str],
    *,
    may_end_nodes: bool,
) -> int:
    """Deploy stacks, and return the exit status.

    Args:
        cluster: cluster file.
        session: session in the cluster's region.
        context: options of the CDK's command line with the context.
        profile: option of the CDK's command line with the profile, if one is given.
        rest: stacks, and other options of `cdk deploy`.
        may_end_nodes: whether an update may end nodes that Karpenter started.

    Raises:
        ValueError: if the file admits no users, or the update would set groups with nodes to 0, or move
            access entries or teams.
    """
    if isinstance(cluster, EksCluster):
        if not (cluster.kubernetes.admitted or cluster.kubernetes.existing):
            raise ValueError(NO_USERS)
        if not cluster.kubernetes.existing:
            _delete_left_logs(session, cluster)
    require_charts(cluster)
    if status := _cdk("synth", "--quiet", *context, *profile):
        return status
    deploy = ("--app", str(ASSEMBLY), "deploy", *profile)
    pairs = deployed_and_new(cluster, session)
    if {"--all", construct_ids(cluster).hyperpod} & {*rest}:
        if moves := deployed_moves(cluster, session, pairs):
            raise ValueError("\n".join(moves))
        if not may_end_nodes:
            _keep_scaled_nodes(session, cluster, pairs)
    for stack in first_to_deploy(cluster, pairs):
        if "--all" not in rest and stack not in rest:
            continue
        print(f"{stack} comes first: it stops using values that other stacks remove", flush=True)
        other_options = [word for word in rest if word not in ("--all", *construct_ids(cluster))]
        if status := _cdk(*deploy, "--exclusively", stack, *other_options):
            return status
    return _cdk(*deploy, *rest) or _report_groups(session, cluster)


def _keep_scaled_nodes(session: boto3.Session, cluster: Cluster, pairs: Sequence[Pair]) -> None:
    """Refuse an update that sets groups to 0 in which Karpenter has nodes.

    CloudFormation sends the counts of the template with every update of the cluster, and its handler may
    delete nodes (BatchDeleteClusterNodes).
    """
    zeros = {name for _, old, new in pairs for name in groups_set_to_zero(old, new)}
    if not zeros:
        return
    sagemaker = aws_client(session, "sagemaker")
    found = if_present(sagemaker.describe_cluster, ClusterName=cluster.name)
    groups = found["InstanceGroups"] if found else []
    with_nodes = [
        f"{group['InstanceGroupName']} ({group['CurrentCount']} nodes)"
        for group in groups
        if group["InstanceGroupName"] in zeros and group.get("CurrentCount", 0)
    ]
    if with_nodes:
        raise ValueError(
            f"this update sends 0 instances for Karpenter's groups {', '.join(with_nodes)}, and may "
            "end these nodes with their jobs. Deploy when the groups are empty, or add "
            'ARGS="--end-scaled-nodes" to accept it'
        )


def _cdk(*arguments: str) -> int:
    return subprocess.run(["node", str(CDK), *arguments]).returncode


def boundary_options(cluster: Cluster) -> list[str]:
    """Return the options of `cdk bootstrap` that give its roles the file's permissions boundary.

    An account that requires the boundary refuses roles without it, and so the bootstrap. The CDK takes the
    name of a policy in the account, with its path.
    """
    boundary = cluster.iam.permissions_boundary
    if boundary is None or boundary.startswith(POLICIES_OF_AWS):
        return []
    name = boundary.partition(":policy/")[2]
    return [f"--custom-permissions-boundary={name}", "--apply-permissions-boundary-to-all-roles"]


def first_to_deploy(cluster: Cluster, pairs: Sequence[Pair]) -> list[str]:
    """Return the construct ids of stacks that must be updated before the stacks that they import from.

    CloudFormation refuses to remove an export while a stack imports it, and the CDK updates the exporting
    stack first. A stack qualifies if it stops importing such a value and imports no new one.

    Args:
        cluster: cluster file.
        pairs: templates of each deployed stack (``deployed_and_new``).

    Raises:
        ValueError: if a stack that is no longer in the file imports such a value.
    """
    ids = dict(zip(stack_names(cluster), construct_ids(cluster), strict=True))
    removed = {name for _, old, new in pairs for name in exports_of(old) - exports_of(new)}
    first = []
    for stack, old, new in pairs:
        before = imported_exports(old["Resources"])
        after = imported_exports(new["Resources"])
        if new is old and before & removed:
            raise ValueError(
                f"stack {stack} is no longer in the file, but uses values that this deployment removes; "
                f"delete it first, with its contents: `aws cloudformation delete-stack --stack-name {stack}`"
            )
        stops_importing = bool((before & removed) - after)
        if stops_importing and after <= before:
            first.append(ids[stack])
    return first


def _delete_left_logs(session: boto3.Session, cluster: EksCluster) -> None:
    """Delete the control plane's log group if an earlier cluster left it; it would block the deployment."""
    names = ResourceNames(cluster)
    stack = deployed_template(aws_client(session, "cloudformation"), stack_names(cluster).hyperpod)
    if stack is not None:
        return
    eks = aws_client(session, "eks")
    if if_present(eks.describe_cluster, name=names.kubernetes_cluster) is None:
        _delete_log_group(session, names.control_plane_log_group)


def _delete_late_logs(session: boto3.Session, cluster: EksCluster) -> None:
    """Delete the log group that EKS may create again after the stack has deleted it; look twice."""
    name = ResourceNames(cluster).control_plane_log_group
    _delete_log_group(session, name)
    print(f"waiting {SECONDS_OF_LATE_LOGS} s for late entries in {name}", flush=True)
    time.sleep(SECONDS_OF_LATE_LOGS)
    _delete_log_group(session, name)


def _delete_log_group(session: boto3.Session, name: str) -> None:
    """Delete a log group that EKS created: a group of a stack has a retention period, and EKS sets none."""
    logs = aws_client(session, "logs")
    for group in logs.describe_log_groups(logGroupNamePrefix=name)["logGroups"]:
        if group["logGroupName"] == name and "retentionInDays" not in group:
            logs.delete_log_group(logGroupName=name)
            print(f"deleted log group {name}, which EKS created for late entries", flush=True)


def _report_groups(session: boto3.Session, cluster: Cluster) -> int:
    """Print the groups of nodes, wait for workers if the cluster file requires it, and return the status."""
    sagemaker = aws_client(session, "sagemaker")
    deadline = time.monotonic() + cluster.wait_minutes * 60
    while True:
        found = if_present(sagemaker.describe_cluster, ClusterName=cluster.name)
        if found is None:  # only other stacks were deployed
            return 0
        missing = _missing_workers(cluster, found["InstanceGroups"])
        if cluster.wait == "none" or not missing or time.monotonic() > deadline:
            break
        print(f"waiting for {', '.join(missing)}", flush=True)
        time.sleep(SECONDS_BETWEEN_LOOKS)
    publish(
        groups=[
            {
                "name": group["InstanceGroupName"],
                "wanted": group.get("TargetCount"),
                "running": group.get("CurrentCount"),
            }
            for group in found["InstanceGroups"]
        ],
        missing=missing,
    )
    rows = [
        [
            group["InstanceGroupName"],
            str(group.get("TargetCount", "")),
            str(group.get("CurrentCount", "")),
        ]
        for group in found["InstanceGroups"]
    ]
    print("\n" + format_table(["group", "wanted", "running"], rows))
    if cluster.continuous_provisioning:
        print(f"\n{activity(sagemaker, cluster.name)}")
    if not missing:
        return 0
    print(
        f"missing nodes: {', '.join(missing)}. HyperPod keeps trying. `make logs` shows node setup, and "
        "`make preflight` quotas and offers; without capacity, try another zone or a training plan.",
        file=sys.stderr,
    )
    return WORKERS_MISSING if cluster.wait == "workers" else 0


def _missing_workers(cluster: Cluster, groups: Sequence[dict[str, Any]]) -> list[str]:
    """Return groups with missing nodes, as ``p5 (6 of 8)``; Karpenter decides about its own groups."""
    wanted = {group.name: group.num_instances for group in cluster.instance_groups}
    running = {group["InstanceGroupName"]: group.get("CurrentCount", 0) for group in groups}
    return [
        f"{name} ({count} of {wanted[name]})"
        for name, count in running.items()
        if count < wanted.get(name, 0)
    ]


if __name__ == "__main__":
    run_command(main)
