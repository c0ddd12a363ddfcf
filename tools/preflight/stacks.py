"""The cluster's own CloudFormation stacks: which are there, and whether they can be updated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from config.cluster import Cluster
from config.resource_names import stack_names, wanted_stacks
from tools.aws_session import if_present
from tools.preflight.finding import Finding, fail, ok
from tools.preflight.read_only_aws import ReadOnlyAws

NEVER_CREATED = {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED"}
"""The first creation failed: CloudFormation takes nothing but a deletion."""
Stack = Literal["network", "storage", "hyperpod", "observability", "studio"]
"""Kind of a cluster's stack: a field of ``stack_names``."""


def stack_status(aws: ReadOnlyAws, name: str) -> str | None:
    """The stack's state; None if there is no such stack, or only an empty change set for one."""
    found = if_present(aws.call, "cloudformation", "describe_stacks", StackName=name)
    status = str(found["Stacks"][0]["StackStatus"]) if found else None
    return None if status == "REVIEW_IN_PROGRESS" else status


def is_deployed(aws: ReadOnlyAws, cluster: Cluster, stack: Stack) -> bool:
    """Whether the stack holds resources that the next deployment keeps."""
    status = stack_status(aws, getattr(stack_names(cluster), stack))
    return status is not None and status not in NEVER_CREATED


def check_stacks(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    names = stack_names(cluster)
    wanted = wanted_stacks(cluster, names)
    for name in names:
        status = stack_status(aws, name)
        subject = f"stack {name}"
        if status is None:
            if name in wanted:
                yield ok(subject, "not there yet")
        elif status in NEVER_CREATED:
            yield fail(
                subject,
                f"its creation failed ({status})",
                f"read the reason (`aws cloudformation describe-stack-events --stack-name {name}`), then "
                f"delete it: `aws cloudformation delete-stack --stack-name {name}`",
            )
        elif status == "UPDATE_ROLLBACK_FAILED":
            yield fail(
                subject,
                f"an update could not be undone ({status})",
                f"`aws cloudformation continue-update-rollback --stack-name {name}`",
            )
        elif status.endswith("_IN_PROGRESS"):
            yield fail(subject, f"being changed now ({status})", "wait until that has ended")
        elif status == "DELETE_FAILED":
            yield fail(
                subject, "its deletion failed", "run `make teardown` again; it names what is in the way"
            )
        else:
            yield ok(subject, f"deployed ({status}); the next deployment updates it")
