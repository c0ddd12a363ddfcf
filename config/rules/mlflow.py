"""What managed MLflow needs."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import Cluster, NewVpc
from config.mlflow import APP_REGIONS, MlflowApp
from config.regions import ZONE_ID_PREFIXES
from config.violation import Violation


def app_is_in_the_region(cluster: Cluster) -> Iterator[Violation]:
    if (
        isinstance(cluster.mlflow, MlflowApp)
        and cluster.region in ZONE_ID_PREFIXES
        and cluster.region not in APP_REGIONS
    ):
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
    if isinstance(cluster.mlflow, MlflowApp) and isinstance(network, NewVpc) and network.internet == "none":
        yield Violation(
            "mlflow.kind",
            "app",
            "an app is reached over the internet, and network.internet is none",
            "set tracking_server, which has an interface endpoint",
        )


RULES = (app_is_in_the_region, app_is_within_reach)
