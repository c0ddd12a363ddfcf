"""Check that a cluster can be deployed: ``python -m tools.preflight --cluster FILE``.

The exit status is 1 if the deployment would fail. It is 3 if no check failed, but some could not be made.
"""

from collections import Counter
from dataclasses import asdict

from config.reading.loader import load_cluster
from tools.aws_session import open_session
from tools.command_line import cluster_parser, run_command
from tools.json_output import add_json_option, publish
from tools.preflight import run_checks
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws

NOT_READY = 1
"""Exit status if the deployment would fail."""
NOT_CHECKED = 3
"""Exit status if some checks could not be made; 2 is for wrong usage."""


def main() -> int:
    parser = cluster_parser("Check, without changing anything, that a cluster can be deployed.")
    add_json_option(parser)
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    profile = options.profile
    aws = ReadOnlyAws(open_session(region=cluster.region, profile=profile), profile=profile)
    findings = []
    for finding in run_checks(aws, cluster):
        findings.append(finding)
        print(f"{finding.level:7}  {finding.subject}: {finding.message}", flush=True)
        if finding.action:
            print(f"         -> {finding.action}", flush=True)
    print(_summary(findings))
    levels = {finding.level for finding in findings}
    is_checked = "UNKNOWN" not in levels
    is_ready = "FAIL" not in levels
    publish(
        cluster=cluster.name,
        region=cluster.region,
        ready=is_ready if is_checked or not is_ready else None,
        findings=[asdict(finding) for finding in findings],
    )
    if not is_ready:
        return NOT_READY
    return 0 if is_checked else NOT_CHECKED


def _summary(findings: list[Finding]) -> str:
    count = Counter(finding.level for finding in findings)
    shown = ", ".join(f"{count[level]} {level}" for level in ("OK", "WARN", "FAIL"))
    if count["FAIL"]:
        return f"\n{shown}: not ready to deploy"
    if number := count["UNKNOWN"]:
        checks = "1 check" if number == 1 else f"{number} checks"
        return (
            f"\n{shown}: {checks} could not be made, so it is unknown whether it is ready to deploy"
        )
    return f"\n{shown}: ready to deploy"


if __name__ == "__main__":
    run_command(main)
