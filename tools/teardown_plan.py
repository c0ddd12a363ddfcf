"""What a teardown deletes, what it keeps, and why the network may have to stay."""

from __future__ import annotations

from dataclasses import dataclass

import boto3

from config.cluster import Cluster
from config.resource_names import control_plane_log_group
from config.stack_names import stack_names
from tools.aws_session import aws_client
from tools.network_holders import kept_holders, live_holders
from tools.remaining_bills import DATA_LINK, bill_of, deletion_of, network_bill
from tools.stack_contents import NEVER_DEPLOYED, StackContents, StackResource, read_stack

HOLDS_DATA = {
    "AWS::SageMaker::Cluster": "the cluster, with all its nodes and what is on their disks",
    "AWS::EKS::Cluster": "the control plane, with all objects of Kubernetes and what is in its volumes",
    "AWS::FSx::FileSystem": "file system",
    "AWS::S3::Bucket": "bucket, with all versions of its objects",
    "AWS::RDS::DBInstance": "database",
    "AWS::ECR::Repository": "image repository, with its images",
    "AWS::KMS::Key": "key (30 days until it is gone)",
    "AWS::APS::Workspace": "metrics",
    "AWS::SageMaker::MlflowApp": "MLflow, with all its runs",
    "AWS::SageMaker::MlflowTrackingServer": "MLflow, with all its runs",
    "AWS::SageMaker::Domain": "Studio, with people's spaces and their disks",
    "AWS::Grafana::Workspace": "Grafana, with people's dashboards",
}


@dataclass(frozen=True)
class TeardownPlan:
    stacks: tuple[StackContents, ...]
    """To be deleted, in this order."""
    network_held: StackContents | None
    """The network stack, if it has to stay."""
    holders: tuple[str, ...]
    """Ids of what holds it."""
    service_logs: tuple[str, ...]
    """Log groups that belong to no stack: HyperPod, EKS and their agents made them."""

    @property
    def kept(self) -> list[StackResource]:
        return [
            resource
            for stack in self.stacks
            for resource in stack.resources
            if resource.physical_id and (resource.is_kept or resource.leaves_snapshot)
        ]

    @property
    def deleted(self) -> list[StackResource]:
        """What is lost for good, as far as it held anything."""
        return [
            resource
            for stack in self.stacks
            for resource in stack.resources
            if resource.physical_id
            and not (resource.is_kept or resource.leaves_snapshot)
            and resource.resource_type in HOLDS_DATA
        ]


def make_plan(session: boto3.Session, cluster: Cluster) -> TeardownPlan:
    """Read the deployed stacks; raises ValueError if one of them is being changed just now."""
    cloudformation = aws_client(session, "cloudformation")
    # Also those that the file asks for no more.
    found_stacks = [read_stack(cloudformation, name) for name in stack_names(cluster)]
    for stack in found_stacks:
        if stack and stack.status.endswith("_IN_PROGRESS") and stack.status != NEVER_DEPLOYED:
            raise ValueError(
                f"stack {stack.name} is being changed ({stack.status}); wait until that has ended"
            )
    network, *others = found_stacks
    going = [stack for stack in reversed(others) if stack]
    resources = [resource for stack in going for resource in stack.resources]
    deleted = {resource.physical_id for resource in resources if not resource.is_kept}
    holders: list[str] = []
    if network:
        found = [*kept_holders(resources), *live_holders(session, network)]
        holders = sorted({holder for holder in found if holder not in deleted})
    if network and not holders:
        going.append(network)
    return TeardownPlan(
        stacks=tuple(going),
        network_held=network if holders else None,
        holders=tuple(holders),
        service_logs=tuple(name for name in _service_logs(session, cluster) if name not in deleted),
    )


def _service_logs(session: boto3.Session, cluster: Cluster) -> tuple[str, ...]:
    """HyperPod logs its nodes' set-up in a group of its own, which belongs to no stack and never expires.

    CloudWatch's agent on the nodes writes to one beside it, which is the stack's. So are those of EKS and
    Container Insights, which they make again for what they say when the stack's are gone.
    """
    prefixes = [f"/aws/sagemaker/Clusters/{cluster.name}/"]
    if cluster.scheduler == "eks":
        prefixes += [control_plane_log_group(cluster), f"/aws/containerinsights/{cluster.name}/"]
    paginator = aws_client(session, "logs").get_paginator("describe_log_groups")
    return tuple(
        group["logGroupName"]
        for prefix in prefixes
        for page in paginator.paginate(logGroupNamePrefix=prefix)
        for group in page["logGroups"]
    )


def describe_plan(plan: TeardownPlan) -> str:
    lines = ["Stacks to delete, in this order:"]
    lines += [f"  {stack.name} ({len(stack.resources)} resources)" for stack in plan.stacks] or ["  none"]
    if plan.deleted:
        lines += ["", "Lost for good:"]
        lines += [f"  {r.physical_id}: {HOLDS_DATA[r.resource_type]}" for r in plan.deleted]
    if remains := describe_remains(plan):
        lines += ["", remains]
    return "\n".join(lines)


def describe_remains(plan: TeardownPlan) -> str:
    """What stays in the account and how to delete it; empty if nothing does."""
    lines: list[str] = []
    if plan.kept or plan.service_logs:
        lines.append("Kept in the account, outside of any stack:")
        for resource in sorted(plan.kept, key=_order_of_deletion):
            lines += _describe_kept(resource)
        for name in plan.service_logs:
            lines += [f"  {name}: a service's log, bills by the GB and month"]
            lines += [f"      aws logs delete-log-group --log-group-name {name}"]
    if plan.network_held:
        lines += [*([""] if lines else []), *_describe_network(plan, plan.network_held)]
    return "\n".join(lines)


def _order_of_deletion(resource: StackResource) -> tuple[bool, bool]:
    """A link before its bucket, which must not be emptied while it is there; then what bills."""
    return resource.resource_type != DATA_LINK, not bill_of(resource)


def _describe_kept(resource: StackResource) -> list[str]:
    kind = resource.resource_type.removeprefix("AWS::").replace("::", " ")
    lines = [f"  {resource.physical_id} ({kind}): {bill_of(resource) or 'bills nothing'}"]
    deletion = deletion_of(resource)
    return [*lines, f"      {deletion}"] if deletion else lines


def _describe_network(plan: TeardownPlan, network: StackContents) -> list[str]:
    bill = network_bill(network)
    return [
        f"Stack {network.name} stays, because a network in use cannot be deleted: "
        f"{', '.join(plan.holders)} use it.",
        f"  It bills {bill}." if bill else "  It bills nothing.",
        "  Delete what holds it (above), then run `make teardown` again.",
    ]


def buckets_to_empty(stack: StackContents) -> list[str]:
    """Buckets that go with the stack; CloudFormation deletes empty ones only."""
    buckets = stack.of_type("AWS::S3::Bucket")
    return [bucket.physical_id for bucket in buckets if bucket.physical_id and not bucket.is_kept]
