"""What managed MLflow needs."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import Cluster, NewVpc
from config.facts.regions import ZONE_ID_PREFIXES
from config.observability import APP_REGIONS
from config.reading.violation import Violation


def app_is_in_the_region(cluster: Cluster) -> Iterator[Violation]:
    if _is_app(cluster) and cluster.region in ZONE_ID_PREFIXES and cluster.region not in APP_REGIONS:
        yield Violation(
            "mlflow.kind",
            "app",
            f"CloudFormation makes MLflow apps in {', '.join(sorted(APP_REGIONS))}",
            "set tracking_server, which every region has and which bills by the hour",
        )


def app_is_within_reach(cluster: Cluster) -> Iterator[Violation]:
    """Apps answer at an address of their own, mlflow.sagemaker.<region>.app.aws (sagemaker-mlflow 0.5.0), for
    which PrivateLink has no service.
    """
    network = cluster.network
    if _is_app(cluster) and isinstance(network, NewVpc) and network.internet == "none":
        yield Violation(
            "mlflow.kind",
            "app",
            "an app is reached over the internet, and network.internet is none",
            "set tracking_server, which has an interface endpoint",
        )


def only_servers_have_sizes(cluster: Cluster) -> Iterator[Violation]:
    if cluster.mlflow and cluster.mlflow.kind == "app" and cluster.mlflow.size:
        yield Violation(
            "mlflow.size",
            cluster.mlflow.size,
            "an app has no size",
            "leave it out, or set mlflow.kind: tracking_server",
        )


def _is_app(cluster: Cluster) -> bool:
    return cluster.mlflow is not None and cluster.mlflow.kind == "app"


RULES = (app_is_in_the_region, app_is_within_reach, only_servers_have_sizes)
