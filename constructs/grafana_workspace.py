"""Where people look at metrics."""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_aps as aps
from aws_cdk import aws_grafana as grafana
from aws_cdk import aws_iam as iam

from config.cluster import Cluster
from constructs import Construct
from constructs.node_statements import Statement
from constructs.statement_role import statement_role


class GrafanaWorkspace(Construct):
    """Amazon Managed Grafana, named as the cluster, that may read the cluster's Prometheus and nothing else.

    People sign in by IAM Identity Center; an administrator lets them in.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: Cluster, metrics: aps.CfnWorkspace
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
                    "ListWorkspaces",
                    ["aps:ListWorkspaces"],
                    ["*"],
                    why_wildcard="Prometheus has no resource-level permissions for the list",
                ),
            ],
        )
        self.workspace = grafana.CfnWorkspace(
            self,
            "Workspace",
            name=cluster.name,
            description=f"HyperPod cluster {cluster.name}",
            account_access_type="CURRENT_ACCOUNT",
            authentication_providers=["AWS_SSO"],
            permission_type="CUSTOMER_MANAGED",
            data_sources=["PROMETHEUS"],
            role_arn=role.role_arn,
        )
        self.for_addon = {
            "workspaceName": cluster.name,
            "arn": stack.format_arn(
                service="grafana", resource="/workspaces", resource_name=self.workspace.attr_id
            ),
        }
