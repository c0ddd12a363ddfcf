"""Sections ``observability`` and ``mlflow`` of a cluster file: alerts, dashboards, and MLflow."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config import text_forms as forms
from config.section import Section

GRAFANA_VERSION = "10.4"
"""Of those that the service has, the last whose own Prometheus data source signs its requests: from 12 on
another one does (Managed Grafana user guide, "Amazon Managed Service for Prometheus data source")."""

Principal = Annotated[str, forms.field(forms.GRAFANA_PRINCIPAL, max_length=256)]
Principals = Annotated[list[Principal], Field(max_length=20)]


class Saml(Section):
    """The identity provider by which people sign in to Grafana."""

    metadata_url: Annotated[str, forms.field(forms.HTTPS_URL, max_length=2048)]
    """Where the provider shows its metadata; Grafana reads it there."""
    role_attribute: Annotated[str, forms.field(forms.ATTRIBUTE_NAME, max_length=256)] = "role"
    """Attribute of an assertion whose values ``admins`` and ``editors`` are."""
    name_attribute: Annotated[str, forms.field(forms.ATTRIBUTE_NAME, max_length=256)] = "displayName"
    """Attribute with the name that people are shown by."""
    login_attribute: Annotated[str, forms.field(forms.ATTRIBUTE_NAME, max_length=256)] = "mail"
    """Attribute by which people are told apart."""
    email_attribute: Annotated[str, forms.field(forms.ATTRIBUTE_NAME, max_length=256)] = "mail"
    """Attribute with the mail address."""


class Grafana(Section):
    """An Amazon Managed Grafana workspace with our dashboards. It bills by people who sign in."""

    sign_in: Literal["identity_center", "saml"]
    """IAM Identity Center, which the account must have then, or a SAML 2.0 identity provider."""
    saml: Saml | None = None
    """For ``sign_in: saml`` alone."""
    admins: Annotated[Principals, Field(min_length=1)]
    """Who may change everything. With Identity Center user/<id> or group/<id>, which `aws identitystore
    list-users` and `list-groups` print; with SAML values of ``role_attribute``."""
    editors: Principals = Field(default=[])
    """Who may change dashboards, in the same form."""
    viewers: Principals = Field(default=[])
    """Who may look, in the same form. With SAML everybody may whom the provider lets in."""


class Observability(Section):
    """Alerts by mail, alarms, and dashboards if wanted; in a stack of its own that outlives the cluster's."""

    emails: Annotated[list[Annotated[str, forms.field(forms.EMAIL)]], Field(min_length=1, max_length=10)]
    """Who is told; each address gets a mail first, whose link it must follow."""
    idle_gpu_hours: Annotated[int, Field(ge=1, le=72)] = 2
    """GPUs of a node that do next to nothing for this long are an alert: they bill as busy ones do."""
    free_space_percent: Annotated[int, Field(ge=1, le=50)] = 10
    """Less free space than this is an alarm, of the file systems on FSx."""
    grafana: Grafana | None = None
    """Null has no dashboards."""


Size = Literal["small", "medium", "large"]


class Mlflow(Section):
    kind: Literal["app", "tracking_server"]
    """An app is SageMaker's serverless MLflow: nothing to size, and nothing that bills while it is idle but
    its bucket. A tracking server is the cluster's own and bills by the hour, used or not."""
    size: Size | None = None
    """Of a tracking server; null is small. Small is meant for 25 people, medium for 50, large for 100
    (SageMaker developer guide, "MLflow Tracking Servers")."""

    @property
    def server_size(self) -> Size | None:
        """None for an app."""
        return (self.size or "small") if self.kind == "tracking_server" else None


APP_REGIONS = frozenset(
    {
        *("ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2"),
        *("ca-central-1", "eu-central-1", "eu-north-1", "eu-west-1", "eu-west-2", "sa-east-1"),
        *("us-east-1", "us-east-2", "us-west-1", "us-west-2"),
    }
)
"""HyperPod's regions with AWS::SageMaker::MlflowApp in CloudFormation's registry; each has
MlflowTrackingServer."""
