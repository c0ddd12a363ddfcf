"""Check that the stacks can be synthesized and pass the validation of `make synth`."""

from collections.abc import Iterator

from config.cluster import Cluster
from tools.preflight.finding import Finding, Subject
from tools.preflight.planned import Planned
from tools.preflight.read_only_aws import ReadOnlyAws

SYNTHESIS = Subject("synthesis")


def check_synthesis(planned: Planned, aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check the synthesis, because a failure would leave only the other stacks, which bill."""
    for problem in planned.problems:
        yield SYNTHESIS.fail(problem.text, problem.remedy)
    if not planned.problems:
        yield SYNTHESIS.ok("all stacks are complete and pass the validation")
