"""CloudWatch's metrics and logs of pods and nodes."""

from __future__ import annotations

from aws_cdk import aws_kms as kms

from config.facts import addons
from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.eks.pod_role import PodRole
from constructs.nodes.node_statements import Statement, metrics_statement
from constructs.storage.log_group import log_group

LOG_DAYS = 30
_KINDS = ("application", "dataplane", "host", "performance")


class ContainerInsights(Construct):
    """CloudWatch's add-on, with log groups made before it, which it would make without key and end."""

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        groups = [
            log_group(
                self,
                f"{kind.capitalize()}Log",
                key=key,
                retention_days=LOG_DAYS,
                log_group_name=f"/aws/containerinsights/{kubernetes.settings.name}/{kind}",
            )
            for kind in _KINDS
        ]
        role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespace="amazon-cloudwatch",
            service_account="cloudwatch-agent",
            statements=[
                Statement(
                    "WriteLogs",
                    ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                    # The attribute ends with ":*" and means the group's streams.
                    [group.attr_arn for group in groups],
                ),
                metrics_statement("ContainerInsights"),
                Statement(
                    "DescribeNodes",
                    ["ec2:DescribeTags", "ec2:DescribeVolumes", "logs:DescribeLogGroups"],
                    ["*"],
                    why_wildcard="there are no resource-level permissions for these",
                ),
            ],
        )
        agent = kubernetes.addon(self, "Addon", addons.CONTAINER_INSIGHTS)
        agent.node.add_dependency(role, *groups)
