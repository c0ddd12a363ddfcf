"""Amazon Managed Grafana workspace, and the function that fills it with dashboards."""

import json
from typing import Any

from aws_cdk import Duration, Stack
from aws_cdk import aws_grafana as grafana
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs

from config.cluster import Cluster
from config.observability import GRAFANA_VERSION, Grafana
from constructs import Construct
from constructs.custom_resource import ResourceProvider
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.policy.statement_role import Statement, statement_role, unscoped
from constructs.storage.file_systems import HomeFileSystem, LustreFileSystem
from monitoring.dashboards import CLOUDWATCH_UID, HOME_MARK, LUSTRE_MARK, PROMETHEUS_UID, dashboards


class GrafanaWorkspace(Construct):
    """Amazon Managed Grafana, named as the cluster, that may read its Prometheus, and metrics of CloudWatch.

    Those of CloudWatch, where file systems are seen, are the account's: they have no ARNs.
    """

    def __init__(
        self, scope: Construct, *, cluster: Cluster, settings: Grafana, metrics: MetricsWorkspace
    ) -> None:
        super().__init__(scope, "Grafana")
        stack = Stack.of(self)
        workspaces = f"arn:{stack.partition}:grafana:{stack.region}:{stack.account}:/workspaces"
        role = statement_role(
            self,
            "Role",
            description=f"Grafana of HyperPod cluster {cluster.name}",
            # The form of the confused-deputy condition in Grafana's user guide; the id is not known yet.
            assumed_by=iam.ServicePrincipal(
                "grafana.amazonaws.com",
                conditions={
                    "StringEquals": {"aws:SourceAccount": stack.account},
                    "ArnLike": {"aws:SourceArn": f"{workspaces}/*"},
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
                    [metrics.workspace.attr_arn],
                ),
                unscoped(
                    "ReadAccount", "aps:ListWorkspaces", "cloudwatch:GetMetricData", "cloudwatch:ListMetrics"
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
        self.arn = f"{workspaces}/{self.workspace.attr_id}"


def _saml(settings: Grafana) -> grafana.CfnWorkspace.SamlConfigurationProperty | None:
    """Return the roles by values of an attribute; a user without one of them is a viewer."""
    saml = settings.saml
    if not saml:
        return None
    return grafana.CfnWorkspace.SamlConfigurationProperty(
        idp_metadata={"url": saml.metadata_url},
        assertion_attributes={
            "role": saml.role_attribute,
            "name": saml.name_attribute,
            "login": saml.login_attribute,
            "email": saml.email_attribute,
        },
        role_values={"admin": settings.admins, "editor": settings.editors or None},
    )


DASHBOARDS = "dashboards.json"
"""Beside the function's code: a request of CloudFormation's is too small for them."""
GIVE_UP = Duration.minutes(15)
"""A new workspace's address is known everywhere within minutes."""


def grafana_contents(
    scope: Construct,
    *,
    cluster: Cluster,
    settings: Grafana,
    grafana: GrafanaWorkspace,
    metrics: MetricsWorkspace,
    lustre: LustreFileSystem,
    home: HomeFileSystem | None,
    log: logs.CfnLogGroup,
) -> None:
    """Fill the workspace by a function, with its own service account, whose token ends with the call."""
    parent = Construct(scope, "Contents")
    function = ResourceProvider(
        parent,
        "grafana_contents",
        files={DASHBOARDS: json.dumps(dashboards(cluster.scheduler), sort_keys=True)},
        description="Puts data sources, dashboards and roles into a Grafana workspace",
        statements=_statements(Stack.of(parent), settings, grafana.arn),
        seconds_between_calls=20,
        log=log,
    )
    people = {"ADMIN": settings.admins, "EDITOR": settings.editors, "VIEWER": settings.viewers}
    marks = {LUSTRE_MARK: lustre.file_system_id, **({HOME_MARK: home.file_system_id} if home else {})}
    function.resource(
        parent,
        "Resource",
        "GrafanaContents",
        {
            "WorkspaceId": grafana.workspace.attr_id,
            "Endpoint": grafana.workspace.attr_endpoint,
            # As text: CloudFormation makes texts of the truth values that it hands on.
            "Folder": json.dumps({"uid": "hyperpod", "title": f"HyperPod {cluster.name}"}),
            "DataSources": json.dumps(_data_sources(cluster, metrics)),
            # The dashboards are among the contents; a change in them calls the function again.
            "Contents": function.contents,
            "Marks": json.dumps(marks),
            "People": people if settings.sign_in == "identity_center" else {},
        },
        GIVE_UP,
    )


def _statements(stack: Stack, settings: Grafana, workspace_arn: str) -> list[Statement]:
    statements = [
        Statement(
            "UseAServiceAccount",
            [
                "grafana:CreateWorkspaceServiceAccount",
                "grafana:CreateWorkspaceServiceAccountToken",
                "grafana:DeleteWorkspaceServiceAccountToken",
                "grafana:DescribeWorkspace",
                "grafana:ListWorkspaceServiceAccountTokens",
                "grafana:ListWorkspaceServiceAccounts",
            ],
            [workspace_arn],
        )
    ]
    if settings.sign_in == "identity_center":
        statements += [
            Statement("GiveRoles", ["grafana:ListPermissions", "grafana:UpdatePermissions"], [workspace_arn]),
            unscoped(
                "ReadIdentityCenter",
                "sso:DescribeRegisteredRegions",
                "sso:GetManagedApplicationInstance",
                "sso:GetProfile",
                "sso:GetSharedSsoConfiguration",
                "sso:ListDirectoryAssociations",
                "sso:ListProfileAssociations",
                "sso:ListProfiles",
                "sso-directory:DescribeGroup",
                "sso-directory:DescribeUser",
                why="what AWSGrafanaWorkspacePermissionManagementV2 has for it; Identity Center has "
                "no resource-level permissions for these",
            ),
            # What has to be added to that policy (Managed Grafana user guide, "AWS managed policies").
            Statement(
                "AssignPeople",
                ["sso:CreateApplicationAssignment", "sso:DeleteApplicationAssignment"],
                [f"arn:{stack.partition}:sso::*:application/*"],
                {"StringEqualsIfExists": {"sso:ApplicationAccount": stack.account}},
                "Identity Center gives the workspace's application its id, and may belong to another account "
                "of the organization; the condition names ours, whose application it is",
            ),
        ]
    return statements


def _data_sources(cluster: Cluster, metrics: MetricsWorkspace) -> list[dict[str, Any]]:
    prometheus = {
        "uid": PROMETHEUS_UID,
        "name": f"Prometheus of {cluster.name}",
        "type": "prometheus",
        "access": "proxy",
        "isDefault": True,
        "url": metrics.workspace.attr_prometheus_endpoint,
        "jsonData": {
            "httpMethod": "POST",
            "sigV4Auth": True,
            # "Workspace IAM Role" (grafana-aws-sdk, awsAuthProviderOptions), as AWS's own stack of HyperPod's
            # console has it.
            "sigV4AuthType": "ec2_iam_role",
            "sigV4Region": cluster.region,
            # Interval of the scrapes of nodes: the window of a rate must hold several samples.
            "timeInterval": "30s",
        },
    }
    cloudwatch = {
        "uid": CLOUDWATCH_UID,
        "name": f"CloudWatch of {cluster.name}",
        "type": "cloudwatch",
        "access": "proxy",
        "jsonData": {"authType": "ec2_iam_role", "defaultRegion": cluster.region},
    }
    return [prometheus, cloudwatch]
