"""Rules for alerts, dashboards and MLflow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config.cluster import Cluster, NewVpc
from config.facts.regions import ZONE_ID_PREFIXES
from config.observability import APP_REGIONS, Grafana
from config.reading.violation import Violation
from config.rules.paths import repetitions

REGIONS = frozenset(
    {
        *("ap-northeast-1", "ap-northeast-2", "ap-southeast-1", "ap-southeast-2", "eu-central-1"),
        *("eu-west-1", "eu-west-2", "us-east-1", "us-east-2", "us-west-2"),
    }
)
"""With AWS::Grafana::Workspace in CloudFormation's registry."""
_GRAFANA = "observability.grafana"
# ResourceId of identitystore, with the kind before it, which Grafana wants to know as well.
_IDENTITY = re.compile(r"(user|group)/([0-9a-f]{10}-)?[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ROLES = ("admins", "editors", "viewers")


def there_are_metrics(cluster: Cluster) -> Iterator[Violation]:
    if cluster.observability and not cluster.prometheus:
        yield Violation(
            "prometheus",
            False,
            "observability watches what Prometheus has",
            "set true, or remove observability",
        )


def mails_once(cluster: Cluster) -> Iterator[Violation]:
    emails = cluster.observability.emails if cluster.observability else []
    yield from repetitions("observability.emails", emails, "it is there already", "name each address once")


def grafana_is_in_the_region(cluster: Cluster) -> Iterator[Violation]:
    if _grafana(cluster) and cluster.region in ZONE_ID_PREFIXES and cluster.region not in REGIONS:
        yield Violation(
            _GRAFANA,
            {},
            f"Amazon Managed Grafana is in {', '.join(sorted(REGIONS))}, and not in {cluster.region}",
            "remove it; a Grafana elsewhere can read Prometheus too",
        )


def people_can_sign_in(cluster: Cluster) -> Iterator[Violation]:
    grafana = _grafana(cluster)
    if grafana and grafana.sign_in == "saml" and not grafana.saml:
        yield Violation(
            f"{_GRAFANA}.saml",
            None,
            "sign_in: saml needs to know the identity provider",
            "set saml.metadata_url, or sign_in to identity_center",
        )
    if grafana and grafana.sign_in == "identity_center" and grafana.saml:
        yield Violation(
            f"{_GRAFANA}.saml",
            {},
            "sign_in: identity_center needs no other identity provider",
            "remove it, or set sign_in to saml",
        )


def people_are_named_as_they_sign_in(cluster: Cluster) -> Iterator[Violation]:
    grafana = _grafana(cluster)
    if not grafana:
        return
    if grafana.sign_in == "saml":
        if grafana.viewers:
            yield Violation(
                f"{_GRAFANA}.viewers",
                grafana.viewers,
                "with SAML everybody is a viewer whom the identity provider lets in",
                "remove it",
            )
        return
    seen: set[str] = set()
    for role in _ROLES:
        for index, name in enumerate(getattr(grafana, role)):
            path = f"{_GRAFANA}.{role}[{index}]"
            if not _IDENTITY.fullmatch(name):
                yield Violation(
                    path,
                    name,
                    "Identity Center knows people as user/<id> or group/<id>",
                    "take the id from `aws identitystore list-groups` (or list-users)",
                )
            elif name in seen:
                yield Violation(path, name, "a user or group has one role", "name it once")
            seen.add(name)


def _grafana(cluster: Cluster) -> Grafana | None:
    return cluster.observability.grafana if cluster.observability else None


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


RULES = (
    there_are_metrics,
    mails_once,
    grafana_is_in_the_region,
    people_can_sign_in,
    people_are_named_as_they_sign_in,
    app_is_in_the_region,
    app_is_within_reach,
    only_servers_have_sizes,
)
