"""Alarms to the alert topic: broken and replaced nodes, and file systems that are nearly full."""

import json
from functools import partial

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
"SageMaker HyperPod cluster events reference"; clusters with continuous provisioning alone have them)."""


TEST_SOURCE, TEST_TYPE = "hyperpod-esm2", "Test Alert"
"""Source and detail type of an event that a person sends, to prove that alerts arrive."""


def test_alert_command(cluster: Cluster) -> str:
    """Return the command that sends a test alert, for use after the mail's subscription is confirmed."""
    detail = json.dumps({"ClusterName": cluster.name}).replace('"', '\\"')
    entry = f'[{{"Source": "{TEST_SOURCE}", "DetailType": "{TEST_TYPE}", "Detail": "{detail}"}}]'
    return f"aws events put-events --region {cluster.region} --entries '{entry}'"


_of = events.EventField.from_path


def node_events(scope: Construct, cluster: Cluster, topic: sns.ITopic) -> None:
    """Create rules of EventBridge for events that SageMaker sends of this cluster, and for a test alert."""
    parent = Construct(scope, "NodeEvents")
    # By its ARN: to one that it knows a target adds a statement that lets in the rules of any account.
    rule = partial(_rule, parent, sns.Topic.from_topic_arn(parent, "Topic", topic.topic_arn))
    name, health, said = cluster.name, "$.detail.HealthSummary", "$.detail.EventDetails"
    message = f"This is a test. Alerts of HyperPod cluster {name} arrive here."
    rule("Test", TEST_TYPE, f"A test alert of {name}", {"ClusterName": [name]}, message, source=TEST_SOURCE)
    rule(
        "Unhealthy",
        "SageMaker HyperPod Cluster Node Health Event",
        f"A node of {name} is unhealthy",
        {"ClusterName": [name], "HealthSummary": {"HealthStatus": ["Unhealthy"]}},
        f"Node {_of('$.detail.InstanceId')} of {name} is unhealthy: "
        f"{_of(f'{health}.HealthStatusReason')} Recommended: {_of(f'{health}.Recommendation')} "
        f"Action: {_of(f'{health}.RepairAction')}.",
    )
    if cluster.continuous_provisioning:
        replaced = {"ClusterName": [name], "Description": events.Match.wildcard(REPLACEMENT)}
        rule(
            "Replacement",
            "SageMaker HyperPod Cluster Event",
            f"A node of {name} is replaced",
            {"EventDetails": replaced},
            f"{_of(f'{said}.EventLevel')} of {name}, "
            f"group {_of(f'{said}.InstanceGroupName')}: {_of(f'{said}.Description')}",
        )


def _rule(
    scope: Construct,
    topic: sns.ITopic,
    construct_id: str,
    kind: str,
    description: str,
    detail: dict[str, object],
    message: str,
    source: str = "aws.sagemaker",
) -> None:
    rule = events.Rule(
        scope,
        construct_id,
        description=description,
        event_pattern=events.EventPattern(source=[source], detail_type=[kind], detail=detail),
        targets=[targets.SnsTopic(topic, message=events.RuleTargetInput.from_text(message))],
    )
    reason = "both are in the account of the deployment, which a synthesis does not know"
    acknowledge(rule, {"Annotation::@aws-cdk/aws-events:ruleUnresolvedEnvironment": reason})


_GIB = 2**30


def space_alarms(
    scope: Construct,
    lustre: LustreFileSystem,
    home: HomeFileSystem | None,
    free_percent: int,
    topic: sns.ITopic,
) -> None:
    """Create an alarm per file system; metrics are those of the user guides of FSx for Lustre and OpenZFS."""
    parent = Construct(scope, "Space")
    alarm = partial(
        cloudwatch.CfnAlarm,
        id="Resource",
        namespace="AWS/FSx",
        period=60,
        # A job's temporary files may come and go.
        evaluation_periods=15,
        treat_missing_data="ignore",
        alarm_actions=[topic.topic_arn],
        ok_actions=[topic.topic_arn],
    )
    alarm(
        Construct(parent, "Lustre"),
        alarm_description=f"{lustre.mount_path} has less than {free_percent} % of {lustre.capacity_gib} "
        "GiB free: remove checkpoints that nobody needs, or raise storage.lustre.capacity_gib and deploy",
        metric_name="FreeDataStorageCapacity",
        dimensions=[{"name": "FileSystemId", "value": lustre.file_system_id}],
        # The sum over all of its disks, each of which reports once a minute.
        statistic="Sum",
        comparison_operator="LessThanThreshold",
        threshold=lustre.capacity_gib * _GIB * free_percent // 100,
    )
    if home:
        alarm(
            Construct(parent, "Home"),
            alarm_description=f"homes have less than {free_percent} % of {home.capacity_gib} GiB free: "
            "ask people to tidy up, or raise storage.home.capacity_gib and deploy",
            metric_name="UsedStorageCapacity",
            dimensions=[{"name": "FileSystemId", "value": home.file_system_id}],
            statistic="Average",
            comparison_operator="GreaterThanThreshold",
            threshold=home.capacity_gib * _GIB * (100 - free_percent) // 100,
        )
