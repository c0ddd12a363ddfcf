"""Findings of a preflight run."""

from __future__ import annotations

from config.cluster_kinds import AnyCluster
from tests.tools.answering_aws import AnsweringAws
from tools.preflight import run_checks
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws


def findings(aws: AnsweringAws, cluster: AnyCluster) -> list[Finding]:
    return list(run_checks(ReadOnlyAws(aws.session), cluster))


def problems(aws: AnsweringAws, cluster: AnyCluster) -> list[tuple[str, str, str]]:
    """Return level, subject and message of all findings that are not OK."""
    return [(f.level, f.subject, f.message) for f in findings(aws, cluster) if f.level != "OK"]
