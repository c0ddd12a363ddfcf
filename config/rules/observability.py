"""Rules for alerts, dashboards and MLflow."""

import re
from collections.abc import Iterator
from functools import partial

from config.cluster import Cluster
from config.observability import Grafana
from config.reading.violation import Violation
from config.rules.rule import CommonRule, has_closed_network, repetitions

_GRAFANA = "observability.grafana"
_IDENTITY = re.compile(
    r"(user|group)/([0-9a-f]{10}-)?[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
)
"""Kind and ResourceId of identitystore, which Grafana also needs."""


def mails_once(cluster: Cluster) -> Iterator[Violation]:
    emails = cluster.observability.emails if cluster.observability else []
    yield from repetitions(
        "observability.emails", emails, "the address is already listed", "list each address once"
    )


def people_are_named_as_they_sign_in(cluster: Cluster) -> Iterator[Violation]:
    grafana = cluster.grafana
    if not grafana or grafana.sign_in == "saml":
        return
    seen: set[str] = set()
    for role in ("admins", "editors", "viewers"):
        for index, name in enumerate(getattr(grafana, role)):
            wrong = partial(Violation, f"{_GRAFANA}.{role}[{index}]", name)
            if not _IDENTITY.fullmatch(name):
                yield wrong(
                    "with Identity Center, people are user/<id> or group/<id>",
                    "take the id from `aws identitystore list-groups` (or list-users)",
                )
            elif name in seen:
                yield wrong("a user or group has one role", "list it once")
            seen.add(name)


def _is_app(cluster: Cluster) -> bool:
    return cluster.mlflow is not None and cluster.mlflow.kind == "app"


def _signs_in_by(cluster: Cluster, way: str) -> Grafana | None:
    grafana = cluster.grafana
    return grafana if grafana and grafana.sign_in == way else None


RULES = (
    # Alert rules and dashboards are made from the workspace's metrics, and there would be none.
    CommonRule(
        "prometheus",
        lambda cluster: cluster.observability and not cluster.prometheus,
        "observability requires Prometheus",
        "set true, or remove observability",
    ),
    # SNS has one subscription per address and topic, so a repetition is probably a misspelt address.
    mails_once,
    # No one could sign in: Grafana reads the provider's certificate from its metadata.
    CommonRule(
        f"{_GRAFANA}.saml",
        lambda cluster: (grafana := _signs_in_by(cluster, "saml")) and not grafana.saml,
        "sign_in: saml requires an identity provider",
        "set saml.metadata_url, or sign_in to identity_center",
    ),
    # The workspace has one kind of authentication here, and the section would have no effect.
    CommonRule(
        f"{_GRAFANA}.saml",
        lambda cluster: (grafana := _signs_in_by(cluster, "identity_center")) and grafana.saml,
        "sign_in: identity_center needs no other identity provider",
        "remove it, or set sign_in to saml",
    ),
    # Grafana maps roles from assertions, and has no list of its own for the rest.
    CommonRule(
        f"{_GRAFANA}.viewers",
        lambda cluster: (grafana := _signs_in_by(cluster, "saml")) and grafana.viewers,
        "with SAML, everyone whom the identity provider admits is a viewer",
        "remove it",
    ),
    # Grafana's API takes ids of the identity store, and gives each one role (UpdatePermissions).
    people_are_named_as_they_sign_in,
    # Apps have an address of their own, mlflow.sagemaker.<region>.app.aws (sagemaker-mlflow 0.5.0), for which
    # PrivateLink has no service.
    CommonRule(
        "mlflow.kind",
        lambda cluster: _is_app(cluster) and has_closed_network(cluster),
        "an app is reached over the internet, and network.internet is none",
        "set tracking_server, which has an interface endpoint",
    ),
    # CreateMlflowApp has no such parameter; only tracking servers are sized (API reference).
    CommonRule(
        "mlflow.size",
        lambda cluster: _is_app(cluster) and cluster.mlflow and cluster.mlflow.size,
        "an app has no size",
        "remove it, or set mlflow.kind: tracking_server",
    ),
)
