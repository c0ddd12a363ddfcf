"""Metrics and logs of pods, nodes and accelerators: HyperPod's observability add-on, or CloudWatch's."""

from typing import Any

from aws_cdk import CfnOutput, Stack

from config.eks_cluster import EksCluster
from config.facts import addons
from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster, configuration_text
from constructs.eks.pod_role import PodRole
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.nodes.node_roles import metrics_statement
from constructs.policy.statement_role import WRITE_LOGS, Statement, unscoped
from constructs.storage.log_group import log_group

# Names, levels and the place of logging are those of the console's own template (observability-template.yaml
# of aws/sagemaker-hyperpod-cluster-setup). `make preflight` compares them with the add-on's schema.
_LEVELS = {
    "trainingMetrics": "BASIC",
    "inferenceMetrics": "BASIC",
    "clusterMetrics": "BASIC",
    "nodeMetrics": "BASIC",
    "acceleratedComputeMetrics": "BASIC",
    # These have no basic level.
    "taskGovernanceMetrics": "DISABLED",
    "scalingMetrics": "DISABLED",
    "networkMetrics": "DISABLED",
}
ADDON_OUTPUT = "ObservabilityAddonCommand"
"""Output of the stack with the command that installs the add-on in an existing EKS cluster."""
INSIGHTS_LOGS = ("application", "dataplane", "host", "performance")
"""Kinds of the add-on's log groups; the add-on determines their names."""


class Observability(Construct):
    """HyperPod's observability add-on, which writes to the cluster's Prometheus workspace."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        kubernetes: KubernetesCluster,
        metrics: MetricsWorkspace,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        settings = kubernetes.settings
        workspace = metrics.workspace
        logs = (
            f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:"
            f"/aws/sagemaker/Clusters/{settings.name}/*"
        )
        write_logs = Statement(
            "WriteLogs",
            ["logs:CreateLogGroup", *WRITE_LOGS],
            [logs],
            why="the last part is the cluster's id, which the service chooses later",
        )
        role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespaces=["hyperpod-observability"],
            service_account="hyperpod-observability-operator-otel-collector",
            statements=[metrics.to_write, write_logs],
        )
        # The workspace's own attribute ends with a slash.
        endpoint = f"https://aps-workspaces.{stack.region}.amazonaws.com/workspaces/{workspace.attr_workspace_id}"
        provider: dict[str, Any] = {
            name: {"level": level} for name, level in _levels(settings).items()
        }
        provider["logging"] = {"enabled": True}
        configuration = {
            "ampWorkspace": {"arn": workspace.attr_arn, "prometheusEndpoint": endpoint},
            "metricsProvider": provider,
        }
        kubernetes.addon(self, "Addon", addons.OBSERVABILITY, configuration, after=[role])
        if kubernetes.is_existing:
            # The addresses in the configuration are known at the deployment only.
            command = (
                f"aws eks create-addon --cluster-name {kubernetes.name} --addon-name {addons.OBSERVABILITY} "
                f"--configuration-values '{configuration_text(configuration)}'"
            )
            output = CfnOutput(self, "Command", value=command)
            output.override_logical_id(ADDON_OUTPUT)


def _levels(settings: EksCluster) -> dict[str, str]:
    """Return the levels of metrics.

    Dashboards also need the metrics of Kueue's queues, and those of EFA if nodes have it.
    """
    levels = dict(_LEVELS)
    if settings.observability is None:
        return levels
    if settings.task_governance is not None:
        levels["taskGovernanceMetrics"] = "ADVANCED"
    if any(group.hardware.num_efa for group in settings.instance_groups):
        levels["networkMetrics"] = "ADVANCED"
    return levels


class ContainerInsights(Construct):
    """CloudWatch's add-on.

    Its log groups are created first, because the add-on would create them without key and retention period.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, kubernetes: KubernetesCluster
    ) -> None:
        super().__init__(scope, construct_id)
        groups = [
            log_group(
                self,
                f"{kind.capitalize()}Log",
                key=kubernetes.key,
                log_group_name=f"/aws/containerinsights/{kubernetes.settings.name}/{kind}",
            )
            for kind in INSIGHTS_LOGS
        ]
        role = PodRole(
            self,
            "Role",
            kubernetes=kubernetes,
            namespaces=["amazon-cloudwatch"],
            service_account="cloudwatch-agent",
            statements=[
                # The attribute's ARN ends with ":*" and means the group's streams.
                Statement("WriteLogs", WRITE_LOGS, [group.attr_arn for group in groups]),
                metrics_statement("ContainerInsights"),
                unscoped(
                    "DescribeNodes",
                    "ec2:DescribeTags",
                    "ec2:DescribeVolumes",
                    "logs:DescribeLogGroups",
                ),
            ],
        )
        kubernetes.addon(self, "Addon", addons.CONTAINER_INSIGHTS, after=[role, *groups])
