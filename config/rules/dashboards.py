"""What a Grafana workspace needs."""

from __future__ import annotations

from collections.abc import Iterator

from config.eks_cluster import EksCluster
from config.regions import ZONE_ID_PREFIXES
from config.violation import Violation

REGIONS = frozenset(
    {
        *("ap-northeast-1", "ap-northeast-2", "ap-southeast-1", "ap-southeast-2", "eu-central-1"),
        *("eu-west-1", "eu-west-2", "us-east-1", "us-east-2", "us-west-2"),
    }
)
"""With AWS::Grafana::Workspace in CloudFormation's registry."""


def grafana_is_in_the_region(cluster: EksCluster) -> Iterator[Violation]:
    if cluster.grafana and cluster.region in ZONE_ID_PREFIXES and cluster.region not in REGIONS:
        yield Violation(
            "grafana",
            True,
            f"Amazon Managed Grafana is in {', '.join(sorted(REGIONS))}",
            "set false; a Grafana elsewhere can read Prometheus too",
        )


def grafana_has_something_to_show(cluster: EksCluster) -> Iterator[Violation]:
    if cluster.grafana and not cluster.prometheus:
        yield Violation(
            "grafana", True, "it shows what Prometheus has, and prometheus is false", "set both or neither"
        )


RULES = (grafana_is_in_the_region, grafana_has_something_to_show)
