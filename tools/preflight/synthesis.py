"""Check that the stack of an EKS cluster can be synthesized."""

from collections.abc import Iterator

from config.eks_cluster import EksCluster
from tools.preflight.finding import Finding, Subject
from tools.preflight.planned import Planned
from tools.preflight.read_only_aws import ReadOnlyAws

SYNTHESIS = Subject("synthesis")


def check_synthesis(planned: Planned, aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Check the synthesis, because a failure would leave only the other stacks, which bill."""
    for error in planned.errors:
        yield SYNTHESIS.fail(error, "correct this first; `make synth` shows it too")
    if not planned.errors:
        yield SYNTHESIS.ok("the cluster's stack is complete, with HyperPod's chart")
