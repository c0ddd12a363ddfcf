"""Alarms to the alert topic: broken and replaced nodes, and file systems that are nearly full."""

import json
from dataclasses import dataclass
from typing import Any

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_sns as sns

from config.cluster import Cluster
from constructs import Construct
from constructs.policy.findings import acknowledge
from constructs.storage.file_systems import HomeFileSystem, LustreFileSystem

REPLACEMENT = "*as part of instance replacement in Cluster*"
"""Pattern of all descriptions of replacements, begun, completed and failed (SageMaker developer guide,
"SageMaker HyperPod cluster events reference"; only clusters with continuous provisioning send them)."""
TEST_SOURCE = "hyperpod-esm2"
"""Source of a test event, which a person sends to prove that alerts arrive."""
TEST_TYPE = "Test Alert"
"""Detail type of a test event."""
SAGEMAKER_SOURCE = "aws.sagemaker"

_GIB = 2**30
_MINUTES_NEARLY_FULL = 15
"""Minutes before an alarm, because a job's temporary files may come and go."""


def test_alert_command(cluster: Cluster) -> str:
    """Return the command that sends a test alert, for use after the mail's subscription is confirmed."""
    detail = json.dumps({"ClusterName": cluster.name}).replace('"', '\\"')
    entry = f'[{{"Source": "{TEST_SOURCE}", "DetailType": "{TEST_TYPE}", "Detail": "{detail}"}}]'
    return f"aws events put-events --region {cluster.region} --entries '{entry}'"


@dataclass(frozen=True)
class _AlertEvent:
    """Event of EventBridge that is sent to the topic."""

    construct_id: str
    source: str
    detail_type: str
    detail: dict[str, object]
    """Pattern of the event's detail."""
    description: str
    """Description of the rule."""
    message: str
    """Text that the topic sends, with fields of the event."""


class NodeEvents(Construct):
    """Rules of EventBridge for events that SageMaker sends about this cluster, and for a test alert."""

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: Cluster, topic: sns.ITopic
    ) -> None:
        super().__init__(scope, construct_id)
        # Imported by its ARN: to a topic that is not imported, a target adds a statement that admits the
        # rules of any account.
        target = sns.Topic.from_topic_arn(self, "Topic", topic.topic_arn)
        alerts = [_test_alert(cluster.name), _unhealthy_node(cluster.name)]
        if cluster.continuous_provisioning:
            alerts.append(_replaced_node(cluster.name))
        for alert in alerts:
            rule = events.Rule(
                self,
                alert.construct_id,
                description=alert.description,
                event_pattern=events.EventPattern(
                    source=[alert.source], detail_type=[alert.detail_type], detail=alert.detail
                ),
                targets=[
                    targets.SnsTopic(
                        target, message=events.RuleTargetInput.from_text(alert.message)
                    ),
                ],
            )
            reason = "rule and topic are in the account of the deployment, which is not known at synthesis"
            acknowledge(rule, {"Annotation::@aws-cdk/aws-events:ruleUnresolvedEnvironment": reason})


def _test_alert(cluster_name: str) -> _AlertEvent:
    return _AlertEvent(
        construct_id="Test",
        source=TEST_SOURCE,
        detail_type=TEST_TYPE,
        detail={"ClusterName": [cluster_name]},
        description=f"A test alert of {cluster_name}",
        message=f"This is a test. Alerts of HyperPod cluster {cluster_name} arrive here.",
    )


def _unhealthy_node(cluster_name: str) -> _AlertEvent:
    node = events.EventField.from_path("$.detail.InstanceId")
    reason = events.EventField.from_path("$.detail.HealthSummary.HealthStatusReason")
    recommended = events.EventField.from_path("$.detail.HealthSummary.Recommendation")
    action = events.EventField.from_path("$.detail.HealthSummary.RepairAction")
    return _AlertEvent(
        construct_id="Unhealthy",
        source=SAGEMAKER_SOURCE,
        detail_type="SageMaker HyperPod Cluster Node Health Event",
        detail={"ClusterName": [cluster_name], "HealthSummary": {"HealthStatus": ["Unhealthy"]}},
        description=f"A node of {cluster_name} is unhealthy",
        message=(
            f"Node {node} of {cluster_name} is unhealthy: {reason} Recommended: {recommended} "
            f"Action: {action}."
        ),
    )


def _replaced_node(cluster_name: str) -> _AlertEvent:
    level = events.EventField.from_path("$.detail.EventDetails.EventLevel")
    group = events.EventField.from_path("$.detail.EventDetails.InstanceGroupName")
    description = events.EventField.from_path("$.detail.EventDetails.Description")
    replacement = {"ClusterName": [cluster_name], "Description": events.Match.wildcard(REPLACEMENT)}
    return _AlertEvent(
        construct_id="Replacement",
        source=SAGEMAKER_SOURCE,
        detail_type="SageMaker HyperPod Cluster Event",
        detail={"EventDetails": replacement},
        description=f"A node of {cluster_name} is replaced",
        message=f"{level} of {cluster_name}, group {group}: {description}",
    )


class SpaceAlarms(Construct):
    """One alarm per file system for low free space."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        lustre: LustreFileSystem | None,
        home: HomeFileSystem | None,
        free_percent: int,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, construct_id)
        if lustre:
            _SpaceAlarm(
                self,
                "Lustre",
                file_system_id=lustre.file_system_id,
                topic=topic,
                alarm_description=(
                    f"{lustre.mount_path} has less than {free_percent} % of {lustre.capacity_gib} GiB free: "
                    "remove old checkpoints, or raise storage.lustre.capacity_gib and deploy"
                ),
                # Metrics of both file systems: "Amazon CloudWatch metrics" in FSx's two user guides.
                metric_name="FreeDataStorageCapacity",
                # The sum over all disks, each of which reports once a minute.
                statistic="Sum",
                comparison_operator="LessThanThreshold",
                threshold=lustre.capacity_gib * _GIB * free_percent // 100,
            )
        if home:
            _SpaceAlarm(
                self,
                "Home",
                file_system_id=home.file_system_id,
                topic=topic,
                alarm_description=(
                    f"home directories have less than {free_percent} % of {home.capacity_gib} GiB free: ask "
                    "users to delete files, or raise storage.home.capacity_gib and deploy"
                ),
                metric_name="UsedStorageCapacity",
                statistic="Average",
                comparison_operator="GreaterThanThreshold",
                threshold=home.capacity_gib * _GIB * (100 - free_percent) // 100,
            )


class _SpaceAlarm(Construct):
    """Alarm of one file system; ``properties`` are those of ``CfnAlarm``."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        file_system_id: str,
        topic: sns.ITopic,
        **properties: Any,
    ) -> None:
        super().__init__(scope, construct_id)
        cloudwatch.CfnAlarm(
            self,
            "Resource",
            namespace="AWS/FSx",
            dimensions=[{"name": "FileSystemId", "value": file_system_id}],
            period=60,
            evaluation_periods=_MINUTES_NEARLY_FULL,
            treat_missing_data="ignore",
            alarm_actions=[topic.topic_arn],
            ok_actions=[topic.topic_arn],
            **properties,
        )
