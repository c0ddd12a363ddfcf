"""Alerts from the log of HyperPod's health monitoring agent, for clusters without its events.

On Slurm, the agent's faults reach CloudWatch Logs, but they may raise no event of EventBridge
(awslabs/awsome-distributed-ai, pull request 1210).
"""

import json

from aws_cdk import CfnOutput, Fn, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns

from constructs import Construct
from constructs.custom_resource import ResourceProvider
from constructs.policy.statement_role import Statement

NAMESPACE = "hyperpod-esm2"
"""CloudWatch namespace of the project's own metrics."""
EVENT_FIELD = "HealthMonitoringAgentDetectionEvent"
EVENT = "HealthEvent"
"""Field and value that mark the agent's reports of faults."""
PATTERN = f'{{ $.{EVENT_FIELD} = "{EVENT}" }}'
TEST_STREAM = "test-alert"
"""Log stream for test events, which functions/health_log creates."""
_PERIOD_SECONDS = 60


def metric_name(cluster_name: str) -> str:
    return f"{cluster_name}-health-events"


class HealthLog(Construct):
    """Metric filter on the log group of one cluster, which has the cluster's id in its name."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster_name: str,
        cluster_arn: str,
        key: kms.IKey | None,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        # arn:aws:sagemaker:<region>:<account>:cluster/<id>
        cluster_id = Fn.select(1, Fn.split("/", cluster_arn))
        group = f"/aws/sagemaker/Clusters/{cluster_name}/{cluster_id}"
        groups = (
            f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:"
            f"/aws/sagemaker/Clusters/{cluster_name}/*"
        )
        provider = ResourceProvider(
            self,
            "Function",
            name="health_log",
            description="Counts faults in the log of HyperPod's health monitoring agent",
            statements=[
                Statement(
                    "CountFaults",
                    [
                        "logs:CreateLogGroup",
                        "logs:CreateLogStream",
                        "logs:DeleteMetricFilter",
                        "logs:PutMetricFilter",
                    ],
                    [groups],
                    why="the last part is the cluster's id, which changes when the cluster is replaced",
                )
            ],
            seconds_between_calls=15,
            log=log,
        )
        properties = {
            "LogGroupName": group,
            "Pattern": PATTERN,
            "MetricNamespace": NAMESPACE,
            "MetricName": metric_name(cluster_name),
        }
        if key:
            properties["KmsKeyId"] = key.key_arn
        self.resource = provider.resource(self, "Filter", "HealthLog", properties)
        CfnOutput(
            self, "TestHealthAlertCommand", value=_test_command(stack.region, group, cluster_name)
        ).override_logical_id("TestHealthAlertCommand")


def _test_command(region: str, group: str, cluster_name: str) -> str:
    """Return the command that writes a test event, which counts as a fault, to the agent's log group."""
    message = json.dumps({EVENT_FIELD: EVENT, "Test": f"test alert of {cluster_name}"})
    event = json.dumps([{"timestamp": 0, "message": message}]).replace(
        '"timestamp": 0', "\"timestamp\": '$(date +%s000)'"
    )
    return (
        f"aws logs put-log-events --region {region} --log-group-name {group} "
        f"--log-stream-name {TEST_STREAM} --log-events '{event}'"
    )


class HealthLogAlarm(Construct):
    """Alarm on the metric, which has values only when the agent reports a fault."""

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster_name: str, topic: sns.ITopic
    ) -> None:
        super().__init__(scope, construct_id)
        cloudwatch.CfnAlarm(
            self,
            "Resource",
            alarm_description=(
                f"HyperPod's health agent reports a fault of a node of {cluster_name}, or a test alert was "
                "sent: `aws sagemaker list-cluster-nodes` shows the node, and its entry is in the log group "
                f"/aws/sagemaker/Clusters/{cluster_name}/<cluster id>. HyperPod replaces or reboots the node "
                "if node_recovery is automatic"
            ),
            namespace=NAMESPACE,
            metric_name=metric_name(cluster_name),
            statistic="Sum",
            period=_PERIOD_SECONDS,
            evaluation_periods=1,
            comparison_operator="GreaterThanOrEqualToThreshold",
            threshold=1,
            treat_missing_data="notBreaching",
            alarm_actions=[topic.topic_arn],
        )
