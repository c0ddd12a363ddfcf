"""Metrics and logs of pods, nodes and accelerators: HyperPod's observability add-on, or CloudWatch's."""

from typing import Any

from aws_cdk import Stack

from config.eks_cluster import EksCluster
from config.facts import addons
from config.facts.instance_catalogue import instance_type
from constructs import Construct
from constructs.eks.kubernetes_cluster import KubernetesCluster
from constructs.monitoring.metrics_workspace import MetricsWorkspace
from constructs.nodes.node_roles import metrics_statement
from constructs.policy.statement_role import WRITE_LOGS, Statement, unscoped
from constructs.storage.log_group import log_group

# Names, levels and the place of logging are those of the console's own template (observability-template.yaml
# of aws/sagemaker-hyperpod-cluster-setup); make preflight holds them against the add-on's schema.
_LEVELS = {
    **dict.fromkeys(
        [f"{kind}Metrics" for kind in ("training", "inference", "cluster", "node", "acceleratedCompute")],
        "BASIC",
    ),
    # There is no basic level of these.
    **dict.fromkeys(("taskGovernanceMetrics", "scalingMetrics", "networkMetrics"), "DISABLED"),
}


def observability(scope: Construct, kubernetes: KubernetesCluster, metrics: MetricsWorkspace) -> Construct:
    """Install HyperPod's observability add-on, which writes to the cluster's Prometheus workspace."""
    parent = Construct(scope, "Observability")
    stack, settings = Stack.of(parent), kubernetes.settings
    workspace = metrics.workspace
    logs = (
        f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:"
        f"/aws/sagemaker/Clusters/{settings.name}/*"
    )
    role = kubernetes.pod_role(
        parent,
        "Role",
        ["hyperpod-observability"],
        "hyperpod-observability-operator-otel-collector",
        [
            metrics.to_write,
            Statement(
                "WriteLogs",
                ["logs:CreateLogGroup", *WRITE_LOGS],
                [logs],
                why="the last part is the cluster's id, which the service makes up later",
            ),
        ],
    )
    levels = _LEVELS | dict.fromkeys(_watched(settings), "ADVANCED")
    metrics_provider: dict[str, Any] = {name: {"level": level} for name, level in levels.items()}
    kubernetes.addon(
        parent,
        "Addon",
        addons.OBSERVABILITY,
        {
            "ampWorkspace": {
                "arn": workspace.attr_arn,
                # The workspace's own attribute ends with a slash.
                "prometheusEndpoint": (
                    f"https://aps-workspaces.{stack.region}.amazonaws.com/workspaces/"
                    f"{workspace.attr_workspace_id}"
                ),
            },
            "metricsProvider": {**metrics_provider, "logging": {"enabled": True}},
        },
        after=[role],
    )
    return parent


def _watched(settings: EksCluster) -> list[str]:
    """Return the metrics of dashboards beyond the basic levels: Kueue's queues, and EFA if nodes have it."""
    if settings.observability is None:
        return []
    has_efa = any(instance_type(group.instance_type).num_efa for group in settings.instance_groups)
    return ["taskGovernanceMetrics"] * (settings.task_governance is not None) + ["networkMetrics"] * has_efa


def container_insights(scope: Construct, kubernetes: KubernetesCluster) -> Construct:
    """Install CloudWatch's add-on after its log groups, which it would make without key and end."""
    parent = Construct(scope, "ContainerInsights")
    groups = [
        log_group(
            parent,
            f"{kind.capitalize()}Log",
            key=kubernetes.key,
            log_group_name=f"/aws/containerinsights/{kubernetes.settings.name}/{kind}",
        )
        for kind in ("application", "dataplane", "host", "performance")
    ]
    role = kubernetes.pod_role(
        parent,
        "Role",
        ["amazon-cloudwatch"],
        "cloudwatch-agent",
        [
            # The attribute ends with ":*" and means the group's streams.
            Statement("WriteLogs", WRITE_LOGS, [group.attr_arn for group in groups]),
            metrics_statement("ContainerInsights"),
            unscoped("DescribeNodes", "ec2:DescribeTags", "ec2:DescribeVolumes", "logs:DescribeLogGroups"),
        ],
    )
    kubernetes.addon(parent, "Addon", addons.CONTAINER_INSIGHTS, after=[role, *groups])
    return parent
