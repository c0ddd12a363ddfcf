"""Checks of the quotas for dashboards and alerts, and of the sign-in to Grafana."""

import urllib.request
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from config.cluster import Cluster
from config.observability import GRAFANA_VERSION
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import Quota, judge_quota
from tools.preflight.stacks import is_deployed

GRAFANA = Subject("Grafana")
SAML = Subject("Grafana, SAML")

METRICS_QUOTA = Quota(
    "aps",
    "Amazon Managed Service for Prometheus",
    "Workspaces per region per account",
    subject="quota metrics workspaces per Region",
)
GRAFANA_QUOTA = Quota(
    "grafana",
    "Amazon Managed Grafana",
    "Number of workspaces",
    subject="quota Grafana workspaces per Region",
)
"""Quotas of both services (their user guides, "Quotas")."""
METADATA = "{urn:oasis:names:tc:SAML:2.0:metadata}EntityDescriptor"
"""Root element of a provider's metadata."""
METADATA_SECONDS = 10
METADATA_BYTES = 1_000_000
"""Most bytes that are read; a provider's metadata has some kilobytes."""


def check_metrics_quota(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    if cluster.prometheus and not is_deployed(aws, cluster, "storage"):
        used = len(aws.items("amp", "list_workspaces", "workspaces"))
        yield judge_quota(aws, METRICS_QUOTA, used=used)


def check_grafana_quota(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    if cluster.grafana and not is_deployed(aws, cluster, "observability"):
        used = len(aws.items("grafana", "list_workspaces", "workspaces"))
        yield judge_quota(aws, GRAFANA_QUOTA, used=used)


def check_grafana_version(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check that new workspaces may have our version, because the service adds and removes versions."""
    if not cluster.grafana or is_deployed(aws, cluster, "observability"):
        return
    versions = aws.items("grafana", "list_versions", "grafanaVersions")
    if GRAFANA_VERSION in versions:
        yield GRAFANA.ok(f"new workspaces may have version {GRAFANA_VERSION}")
    else:
        yield GRAFANA.fail(
            f"new workspaces have version {', '.join(versions)}; the dashboards are for {GRAFANA_VERSION}",
            "set GRAFANA_VERSION of config/observability.py to one of these; from 12 on the data source of "
            "constructs/monitoring/grafana_workspace.py must be Amazon Managed Service for Prometheus",
        )


def check_identity_center(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check Identity Center and its people. People are not looked up in an instance in another region."""
    grafana = cluster.grafana
    if not grafana or grafana.sign_in != "identity_center":
        return
    instances = active_instances(aws, RegionScope="ALL_REGIONS")
    if not instances:
        yield GRAFANA.fail(
            "people sign in through IAM Identity Center, and the account has no instance of it",
            "enable it (console, IAM Identity Center; in an organization in its management account), or set "
            "observability.grafana.sign_in to saml",
        )
        return
    yield GRAFANA.ok("people sign in through IAM Identity Center, which the account has")
    stores = [
        instance["IdentityStoreId"]
        for instance in instances
        if "IdentityStoreId" in instance and instance.get("PrimaryRegion", aws.region) == aws.region
    ]
    if not stores:
        return
    for name in [*grafana.admins, *grafana.editors, *grafana.viewers]:
        kind, _, principal = name.partition("/")
        if kind == "user":
            found = aws.find(
                "identitystore", "describe_user", IdentityStoreId=stores[0], UserId=principal
            )
        else:
            found = aws.find(
                "identitystore", "describe_group", IdentityStoreId=stores[0], GroupId=principal
            )
        if found is None:
            yield Subject(f"Grafana, {name}").fail(
                "Identity Center has no user or group with this id",
                "copy it from `aws identitystore list-groups` or list-users, with --identity-store-id "
                f"{stores[0]}",
            )


def active_instances(aws: ReadOnlyAws, **scope: str) -> list[dict[str, Any]]:
    """Return the active instances of IAM Identity Center."""
    found = aws.items("sso-admin", "list_instances", "Instances", **scope)
    return [instance for instance in found if instance.get("Status", "ACTIVE") == "ACTIVE"]


def check_saml(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check that the file's URL returns the identity provider's metadata, which Grafana reads."""
    grafana = cluster.grafana
    if not grafana or not grafana.saml:
        return
    url = grafana.saml.metadata_url
    try:
        root = ElementTree.fromstring(_fetch(url))
    except ElementTree.ParseError as error:
        yield SAML.fail(f"{url} is not XML ({error})", "set saml.metadata_url to the metadata")
    except (OSError, ValueError) as error:
        # Grafana may still be able to reach it.
        yield SAML.warn(
            f"{url} cannot be read from here: {error}",
            "check that it can be read from the internet, from which Grafana reads it",
        )
    else:
        if root.tag == METADATA:
            yield SAML.ok(f"people sign in through {root.get('entityID', url)}")
        else:
            yield SAML.fail(
                f"{url} holds {root.tag}, not a provider's EntityDescriptor",
                "set saml.metadata_url to the metadata of one identity provider",
            )


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=METADATA_SECONDS) as answer:
        content: bytes = answer.read(METADATA_BYTES)
    return content
