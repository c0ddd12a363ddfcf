"""Checks of the cluster's CloudFormation stacks, and the nodes and addresses that they still lack."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from config.address_demand import address_takers
from config.cluster import Cluster
from config.eks_cluster import EksInstanceGroup
from config.resource_names import stack_names, wanted_stacks
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

NEVER_CREATED = {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED"}
"""States after a failed creation, in which CloudFormation only accepts a deletion."""
Stack = Literal["network", "storage", "hyperpod", "observability", "studio"]
"""Kind of a cluster's stack, which is a field of ``stack_names``."""


def stack_status(aws: ReadOnlyAws, name: str) -> str | None:
    """Return the stack's state; None if it does not exist, or only as an empty change set."""
    found = aws.find("cloudformation", "describe_stacks", StackName=name)
    status = str(found["Stacks"][0]["StackStatus"]) if found else None
    return None if status == "REVIEW_IN_PROGRESS" else status


def is_deployed(aws: ReadOnlyAws, cluster: Cluster, stack: Stack) -> bool:
    """Return whether the stack has resources that the next deployment keeps."""
    status = stack_status(aws, getattr(stack_names(cluster), stack))
    return status is not None and status not in NEVER_CREATED


def check_stacks(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    names = stack_names(cluster)
    wanted = wanted_stacks(cluster, names)
    for name in names:
        status = stack_status(aws, name)
        subject = Subject(f"stack {name}")
        if status is None:
            if name in wanted:
                yield subject.ok("does not exist yet")
        elif status in NEVER_CREATED:
            yield subject.fail(
                f"its creation failed ({status})",
                f"read the reason (`aws cloudformation describe-stack-events --stack-name {name}`), then "
                f"delete it: `aws cloudformation delete-stack --stack-name {name}`",
            )
        elif status == "UPDATE_ROLLBACK_FAILED":
            yield subject.fail(
                f"an update could not be undone ({status})",
                f"`aws cloudformation continue-update-rollback --stack-name {name}`",
            )
        elif status.endswith("_IN_PROGRESS"):
            yield subject.fail(f"a change is in progress ({status})", "wait until it has ended")
        elif status == "DELETE_FAILED":
            yield subject.fail(
                "its deletion failed", "run `make teardown` again; it names the cause"
            )
        else:
            yield subject.ok(f"deployed ({status}); the next deployment updates it")


def missing_nodes(aws: ReadOnlyAws, cluster: Cluster) -> Cluster:
    """Return the cluster with only the missing nodes of each group, including Karpenter's."""
    if not is_deployed(aws, cluster, "hyperpod"):
        return cluster
    described = aws.call("sagemaker", "describe_cluster", ClusterName=cluster.name)
    present = {
        (group["InstanceGroupName"], group.get("InstanceType")): group.get("CurrentCount", 0)
        for group in described["InstanceGroups"]
    }
    groups = []
    for group in cluster.instance_groups:
        num_present = present.get((group.name, group.instance_type), 0)
        missing = {"num_instances": max(0, group.num_instances - num_present)}
        if isinstance(group, EksInstanceGroup) and group.max_instances:
            missing["max_instances"] = max(0, group.max_instances - num_present)
        groups.append(group.model_copy(update=missing))
    return cluster.model_copy(update={"instance_groups": groups})


def missing_addresses(aws: ReadOnlyAws, cluster: Cluster) -> Counter[str]:
    """Return the addresses that the next deployment needs in addition, by zone id."""
    held: tuple[str, ...] = ("network.",) if is_deployed(aws, cluster, "network") else ()
    if is_deployed(aws, cluster, "storage"):
        held += ("storage.", "accounting_database")
    if is_deployed(aws, cluster, "hyperpod"):
        held += ("kubernetes",)
    missing: Counter[str] = Counter()
    for zone, taken in address_takers(missing_nodes(aws, cluster)).items():
        for place, number in taken.items():
            if not place.startswith(held):
                missing[zone] += number
    return missing
