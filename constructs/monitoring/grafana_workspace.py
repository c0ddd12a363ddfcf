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
    """Amazon Managed Grafana that may read the cluster's Prometheus workspace, and metrics of CloudWatch.

    Metrics of CloudWatch, where file systems report, have no ARNs, so all of the account can be read.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Cluster,
        settings: Grafana,
        metrics: MetricsWorkspace,
    ) -> None:
        """Create the workspace and its role.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            cluster: cluster file; its name is the workspace's name.
            settings: sign-in and roles of people.
            metrics: Prometheus workspace of the data source.
        """
        super().__init__(scope, construct_id)
        self.cluster = cluster
        self.settings = settings
        self.metrics = metrics
        stack = Stack.of(self)
        workspaces = f"arn:{stack.partition}:grafana:{stack.region}:{stack.account}:/workspaces"
        role = statement_role(
            self,
            "Role",
            description=f"Grafana of HyperPod cluster {cluster.name}",
            # The condition against confused deputies in Grafana's user guide. It has a wildcard because the
            # workspace's id is not known yet.
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
                    "ReadAccount",
                    "aps:ListWorkspaces",
                    "cloudwatch:GetMetricData",
                    "cloudwatch:ListMetrics",
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
            authentication_providers=[
                "AWS_SSO" if settings.sign_in == "identity_center" else "SAML"
            ],
            saml_configuration=_saml(settings),
            permission_type="CUSTOMER_MANAGED",
            data_sources=["PROMETHEUS", "CLOUDWATCH"],
            role_arn=role.role_arn,
        )
        self.arn = f"{workspaces}/{self.workspace.attr_id}"


def _saml(settings: Grafana) -> grafana.CfnWorkspace.SamlConfigurationProperty | None:
    """Return the mapping of SAML attributes to roles; a user without one of the values is a viewer."""
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


FOLDER_UID = "hyperpod"
"""Uid of the dashboards' folder, and first part of the dashboards' own uids."""
DASHBOARDS_FILE = "dashboards.json"
"""File beside the function's code, because the dashboards are too large for a request of CloudFormation."""
GIVE_UP = Duration.minutes(15)
"""Time until the function gives up; DNS servers resolve a new workspace's address within minutes."""


class GrafanaContents(Construct):
    """Data sources, dashboards and roles of a workspace.

    A function creates them with its own service account. The account's token is deleted after each call.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        grafana: GrafanaWorkspace,
        lustre: LustreFileSystem | None,
        home: HomeFileSystem | None,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        cluster = grafana.cluster
        settings = grafana.settings
        function = ResourceProvider(
            self,
            "Function",
            name="grafana_contents",
            files={DASHBOARDS_FILE: json.dumps(dashboards(cluster.scheduler), sort_keys=True)},
            description="Puts data sources, dashboards and roles into a Grafana workspace",
            statements=_statements(Stack.of(self), settings, grafana.arn),
            seconds_between_calls=20,
            log=log,
        )
        people: dict[str, list[str]] = {}
        if settings.sign_in == "identity_center":
            people = {
                "ADMIN": settings.admins,
                "EDITOR": settings.editors,
                "VIEWER": settings.viewers,
            }
        # Panels of a file system that is missing have no data.
        marks = {LUSTRE_MARK: lustre.file_system_id} if lustre else {}
        if home:
            marks[HOME_MARK] = home.file_system_id
        function.resource(
            self,
            "Resource",
            "GrafanaContents",
            {
                "WorkspaceId": grafana.workspace.attr_id,
                "Endpoint": grafana.workspace.attr_endpoint,
                # JSON as text, because CloudFormation turns booleans within properties into texts.
                "Folder": json.dumps({"uid": FOLDER_UID, "title": f"HyperPod {cluster.name}"}),
                "DataSources": json.dumps(_data_sources(cluster, grafana.metrics)),
                # The hash includes the dashboards, so a change in them calls the function again.
                "Contents": function.contents,
                "Marks": json.dumps(marks),
                "People": people,
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
            Statement(
                "GiveRoles",
                ["grafana:ListPermissions", "grafana:UpdatePermissions"],
                [workspace_arn],
            ),
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
                why="these are the actions of AWSGrafanaWorkspacePermissionManagementV2; Identity Center has "
                "no resource-level permissions for them",
            ),
            # Required in addition to that policy (Managed Grafana user guide, "AWS managed policies").
            Statement(
                "AssignPeople",
                ["sso:CreateApplicationAssignment", "sso:DeleteApplicationAssignment"],
                [f"arn:{stack.partition}:sso::*:application/*"],
                {"StringEqualsIfExists": {"sso:ApplicationAccount": stack.account}},
                "Identity Center chooses the id of the workspace's application, and may belong to another "
                "account of the organization; the condition names this account, which owns the application",
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
            # "Workspace IAM Role" (grafana-aws-sdk, awsAuthProviderOptions), as in AWS's own stack that
            # HyperPod's console deploys.
            "sigV4AuthType": "ec2_iam_role",
            "sigV4Region": cluster.region,
            # Interval at which nodes are scraped; the window of a rate must contain several samples.
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
