"""Alert rules, alarms and dashboards."""

from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_aps as aps

from config.cluster import Cluster
from config.facts.training_plans import groups_of_plans
from config.observability import Observability
from constructs import Construct
from constructs.monitoring.alarms import NodeEvents, SpaceAlarms, test_alert_command
from constructs.monitoring.grafana_workspace import GrafanaContents, GrafanaWorkspace
from constructs.monitoring.health_log import HealthLogAlarm
from constructs.monitoring.plan_ends import PlanEndAlarms
from constructs.storage.log_group import log_group
from monitoring.alert_rules import rules_text
from stacks.storage_stack import StorageStack


class ObservabilityStack(Stack):
    """Alert rules, alarms and dashboards, which outlive the cluster.

    They need only the storage stack, so that dashboards stay when the cluster is destroyed overnight.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Cluster,
        settings: Observability,
        storage: StorageStack,
        **stack_arguments: Any,
    ) -> None:
        super().__init__(scope, construct_id, **stack_arguments)
        assert storage.metrics and storage.alerts, "the rules of cluster files require both"
        topic = storage.alerts.topic
        metrics = storage.metrics
        aps.CfnRuleGroupsNamespace(
            self,
            "Rules",
            name="hyperpod",
            workspace=metrics.workspace.attr_arn,
            data=rules_text(cluster),
        )
        SpaceAlarms(
            self,
            "Space",
            lustre=storage.lustre,
            home=storage.home,
            free_percent=settings.free_space_percent,
            topic=topic,
        )
        NodeEvents(self, "NodeEvents", cluster=cluster, topic=topic)
        if cluster.scheduler == "slurm":
            HealthLogAlarm(self, "HealthLog", cluster_name=cluster.name, topic=topic)
        plan_arns = [*groups_of_plans(cluster)]
        if settings.grafana or plan_arns:
            function_log = log_group(self, "FunctionLog", key=storage.key)
        if plan_arns:
            PlanEndAlarms(self, "PlanEnds", plan_arns=plan_arns, topic=topic, log=function_log)
        if settings.grafana:
            grafana = GrafanaWorkspace(
                self, "Grafana", cluster=cluster, settings=settings.grafana, metrics=metrics
            )
            GrafanaContents(
                self,
                "Contents",
                grafana=grafana,
                lustre=storage.lustre,
                home=storage.home,
                log=function_log,
            )
            CfnOutput(self, "GrafanaUrl", value=f"https://{grafana.workspace.attr_endpoint}")
        CfnOutput(self, "AlertTopicArn", value=topic.topic_arn)
        CfnOutput(self, "TestAlertCommand", value=test_alert_command(cluster))
