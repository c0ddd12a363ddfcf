"""``python -m tools.preflight --cluster clusters/slurm.yaml``: exit status 1 if anything would fail."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from config.loader import load_cluster
from tools.aws_session import open_session
from tools.command_line import cluster_parser, run_command
from tools.preflight import run_checks
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws


def main() -> int:
    parser = cluster_parser("Check, without changing anything, that a cluster can be deployed.")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    aws = ReadOnlyAws(open_session(region=cluster.region, profile=options.profile))
    findings = []
    for finding in run_checks(aws, cluster):
        findings.append(finding)
        if not options.json:
            print(_line(finding), flush=True)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print(_summary(findings))
    return int(any(finding.level == "FAIL" for finding in findings))


def _line(finding: Finding) -> str:
    line = f"{finding.level:4}  {finding.subject}: {finding.message}"
    return f"{line}\n      -> {finding.action}" if finding.action else line


def _summary(findings: list[Finding]) -> str:
    count = Counter(finding.level for finding in findings)
    verdict = "not ready to deploy" if count["FAIL"] else "ready to deploy"
    return f"\n{count['OK']} OK, {count['WARN']} WARN, {count['FAIL']} FAIL: {verdict}"


if __name__ == "__main__":
    run_command(main)
