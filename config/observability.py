"""Sections ``observability`` and ``mlflow`` of a cluster file: alerts, dashboards, and MLflow."""

from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.section import Section

GRAFANA_VERSION = "10.4"
"""Newest offered version with a built-in Prometheus data source that signs its requests. From 12 on a
separate data source does (Managed Grafana user guide, "Amazon Managed Service for Prometheus data
source")."""

Principal = Annotated[str, forms.field(forms.GRAFANA_PRINCIPAL, max_length=256)]
Principals = Annotated[list[Principal], Field(max_length=20)]


class Saml(Section):
    """Identity provider through which people sign in to Grafana."""

    metadata_url: Annotated[str, forms.field(forms.HTTPS_URL, max_length=2048)]
    """URL of the provider's metadata, from which Grafana reads it."""
    role_attribute: Annotated[str, forms.field(forms.ATTRIBUTE_NAME, max_length=256)] = "role"
    """Attribute of an assertion that contains the values of ``admins`` and ``editors``."""
    name_attribute: Annotated[str, forms.field(forms.ATTRIBUTE_NAME, max_length=256)] = (
        "displayName"
    )
    """Attribute with the display name."""
    login_attribute: Annotated[str, forms.field(forms.ATTRIBUTE_NAME, max_length=256)] = "mail"
    """Attribute that identifies a person."""
    email_attribute: Annotated[str, forms.field(forms.ATTRIBUTE_NAME, max_length=256)] = "mail"
    """Attribute with the email address."""


class Grafana(Section):
    """Amazon Managed Grafana workspace with the project's dashboards. It bills per person who signs in."""

    sign_in: Literal["identity_center", "saml"]
    """Sign-in through IAM Identity Center, if the account has it, or a SAML 2.0 identity provider."""
    saml: Saml | None = None
    """Identity provider, only for ``sign_in: saml``."""
    admins: Annotated[Principals, Field(min_length=1)]
    """People who may change everything. With Identity Center, user/<id> or group/<id>, which `aws
    identitystore list-users` and `list-groups` print. With SAML, values of ``role_attribute``."""
    editors: Principals = Field(default=[])
    """People who may change dashboards, in the same form."""
    viewers: Principals = Field(default=[])
    """People who may view dashboards, in the same form. With SAML, everyone may whom the provider admits."""


class Observability(Section):
    """Email alerts, alarms, and optional dashboards, in a separate stack that outlives the cluster's."""

    emails: Annotated[
        list[Annotated[str, forms.field(forms.EMAIL)]], Field(min_length=1, max_length=10)
    ]
    """Addresses that receive alerts. Each first receives an email with a link to confirm."""
    idle_gpu_hours: Annotated[int, Field(ge=1, le=72)] = 2
    """Hours after which idle GPUs of a node raise an alert, because idle GPUs cost as much as busy ones."""
    free_space_percent: Annotated[int, Field(ge=1, le=50)] = 10
    """Free space of an FSx file system below which an alarm is raised."""
    grafana: Grafana | None = None
    """Grafana workspace; null has no dashboards."""


Size = Literal["small", "medium", "large"]


class Mlflow(Section):
    kind: Literal["app", "tracking_server"]
    """An app is SageMaker's serverless MLflow. It has no size, and only its bucket bills while it is idle. A
    tracking server belongs to the cluster and bills by the hour, even when it is idle."""
    size: Size | None = None
    """Size of a tracking server; null is small. Small is meant for 25 people, medium for 50, large for 100
    (SageMaker developer guide, "MLflow Tracking Servers")."""

    @property
    def server_size(self) -> Size | None:
        """Size of the tracking server; None for an app."""
        return (self.size or "small") if self.kind == "tracking_server" else None
