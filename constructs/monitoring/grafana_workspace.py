"""Where people look at metrics."""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_aps as aps
from aws_cdk import aws_grafana as grafana
from aws_cdk import aws_iam as iam

from config.cluster import Cluster
from config.observability import GRAFANA_VERSION, Grafana
from constructs import Construct
from constructs.nodes.node_statements import Statement
from constructs.policy.statement_role import statement_role


class GrafanaWorkspace(Construct):
    """Amazon Managed Grafana, named as the cluster, that may read its Prometheus, and metrics of CloudWatch.

    Those of CloudWatch, where file systems are seen, are the account's: they have no ARNs.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Cluster,
        settings: Grafana,
        metrics: aps.CfnWorkspace,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        workspaces = f"arn:{stack.partition}:grafana:{stack.region}:{stack.account}:/workspaces/*"
        role = statement_role(
            self,
            "Role",
            description=f"Grafana of HyperPod cluster {cluster.name}",
            # The form of the confused-deputy condition in Grafana's user guide; the id is not known yet.
            assumed_by=iam.ServicePrincipal(
                "grafana.amazonaws.com",
                conditions={
                    "StringEquals": {"aws:SourceAccount": stack.account},
                    "ArnLike": {"aws:SourceArn": workspaces},
                },
            ),
            policy_name="ReadMetrics",
            statements=[
                Statement(
                    "QueryMetrics",
                    [
                        "aps:DescribeWorkspace",
                        "aps:GetLabels",
                        "aps:GetMetricMetadata",
                        "aps:GetSeries",
                        "aps:QueryMetrics",
                    ],
                    [metrics.attr_arn],
                ),
                Statement(
                    "ReadAccount",
                    ["aps:ListWorkspaces", "cloudwatch:GetMetricData", "cloudwatch:ListMetrics"],
                    ["*"],
                    why_wildcard="there are no resource-level permissions for these",
                ),
            ],
        )
        self.workspace = grafana.CfnWorkspace(
            self,
            "Workspace",
            name=cluster.name,
            description=f"HyperPod cluster {cluster.name}",
            grafana_version=GRAFANA_VERSION,
            account_access_type="CURRENT_ACCOUNT",
            authentication_providers=["AWS_SSO" if settings.sign_in == "identity_center" else "SAML"],
            saml_configuration=_saml(settings),
            permission_type="CUSTOMER_MANAGED",
            data_sources=["PROMETHEUS", "CLOUDWATCH"],
            role_arn=role.role_arn,
        )
        self.arn = stack.format_arn(
            service="grafana", resource="/workspaces", resource_name=self.workspace.attr_id
        )


def _saml(settings: Grafana) -> grafana.CfnWorkspace.SamlConfigurationProperty | None:
    """Roles by values of an attribute; who has none of them may look."""
    saml = settings.saml
    if not saml:
        return None
    return grafana.CfnWorkspace.SamlConfigurationProperty(
        idp_metadata=grafana.CfnWorkspace.IdpMetadataProperty(url=saml.metadata_url),
        assertion_attributes=grafana.CfnWorkspace.AssertionAttributesProperty(
            role=saml.role_attribute,
            name=saml.name_attribute,
            login=saml.login_attribute,
            email=saml.email_attribute,
        ),
        role_values=grafana.CfnWorkspace.RoleValuesProperty(
            admin=settings.admins, editor=settings.editors or None
        ),
    )
