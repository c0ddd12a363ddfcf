"""Alarms to the alert topic: broken and replaced nodes, and file systems that are nearly full."""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_sns as sns

from config.cluster import Cluster
from constructs import Construct
from constructs.policy.findings import acknowledge
from constructs.storage.file_systems import HomeFileSystem, LustreFileSystem

REPLACEMENT = "*as part of instance replacement in Cluster*"
"""Pattern of all descriptions of replacements, begun, completed and failed (SageMaker developer guide,
"SageMaker HyperPod cluster events reference"; clusters with continuous provisioning alone have them)."""


class NodeEvents(Construct):
    """Rules of EventBridge for events that SageMaker sends of this cluster."""

    def __init__(self, scope: Construct, construct_id: str, *, cluster: Cluster, topic: sns.ITopic) -> None:
        super().__init__(scope, construct_id)
        # By its ARN: to one that it knows a target adds a statement that lets in the rules of any account.
        topic = sns.Topic.from_topic_arn(self, "Topic", topic.topic_arn)
        health, said = "$.detail.HealthSummary", "$.detail.EventDetails"
        self._rule(
            "Unhealthy",
            topic,
            description=f"A node of {cluster.name} is unhealthy",
            detail_type="SageMaker HyperPod Cluster Node Health Event",
            detail={"ClusterName": [cluster.name], "HealthSummary": {"HealthStatus": ["Unhealthy"]}},
            message=(
                f"Node {_of('$.detail.InstanceId')} of {cluster.name} is unhealthy: "
                f"{_of(f'{health}.HealthStatusReason')} Recommended: {_of(f'{health}.Recommendation')} "
                f"Action: {_of(f'{health}.RepairAction')}."
            ),
        )
        if cluster.continuous_provisioning:
            self._rule(
                "Replacement",
                topic,
                description=f"A node of {cluster.name} is replaced",
                detail_type="SageMaker HyperPod Cluster Event",
                detail={
                    "EventDetails": {
                        "ClusterName": [cluster.name],
                        "Description": events.Match.wildcard(REPLACEMENT),
                    }
                },
                message=(
                    f"{_of(f'{said}.EventLevel')} of {cluster.name}, "
                    f"group {_of(f'{said}.InstanceGroupName')}: {_of(f'{said}.Description')}"
                ),
            )

    def _rule(
        self,
        construct_id: str,
        topic: sns.ITopic,
        *,
        description: str,
        detail_type: str,
        detail: dict[str, object],
        message: str,
    ) -> None:
        rule = events.Rule(
            self,
            construct_id,
            description=description,
            event_pattern=events.EventPattern(
                source=["aws.sagemaker"], detail_type=[detail_type], detail=detail
            ),
            targets=[targets.SnsTopic(topic, message=events.RuleTargetInput.from_text(message))],
        )
        reason = "both are in the account of the deployment, which a synthesis does not know"
        acknowledge(rule, {"Annotation::@aws-cdk/aws-events:ruleUnresolvedEnvironment": reason})


def _of(path: str) -> str:
    return events.EventField.from_path(path)


_GIB = 2**30


class SpaceAlarms(Construct):
    """An alarm a file system; metrics are those of the FSx for Lustre and FSx for OpenZFS user guides."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        lustre: LustreFileSystem,
        home: HomeFileSystem | None,
        free_percent: int,
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, construct_id)
        self._alarm(
            "Lustre",
            f"{lustre.mount_path} has less than {free_percent} % of {lustre.capacity_gib} GiB free: "
            "remove checkpoints that nobody needs, or raise storage.lustre.capacity_gib and deploy",
            # The sum over all of its disks, each of which reports once a minute.
            ("FreeDataStorageCapacity", "Sum", lustre.file_system_id),
            cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            lustre.capacity_gib * _GIB * free_percent // 100,
            topic,
        )
        if home:
            self._alarm(
                "Home",
                f"homes have less than {free_percent} % of {home.capacity_gib} GiB free: ask people to "
                "tidy up, or raise storage.home.capacity_gib and deploy",
                ("UsedStorageCapacity", "Average", home.file_system_id),
                cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
                home.capacity_gib * _GIB * (100 - free_percent) // 100,
                topic,
            )

    def _alarm(
        self,
        construct_id: str,
        description: str,
        metric: tuple[str, str, str],
        comparison: cloudwatch.ComparisonOperator,
        threshold: int,
        topic: sns.ITopic,
    ) -> None:
        name, statistic, file_system_id = metric
        alarm = cloudwatch.Alarm(
            self,
            construct_id,
            alarm_description=description,
            metric=cloudwatch.Metric(
                namespace="AWS/FSx",
                metric_name=name,
                dimensions_map={"FileSystemId": file_system_id},
                statistic=statistic,
                period=Duration.minutes(1),
            ),
            threshold=threshold,
            comparison_operator=comparison,
            # A job's temporary files may come and go.
            evaluation_periods=15,
            treat_missing_data=cloudwatch.TreatMissingData.IGNORE,
        )
        alarm.add_alarm_action(actions.SnsAction(topic))
        alarm.add_ok_action(actions.SnsAction(topic))
