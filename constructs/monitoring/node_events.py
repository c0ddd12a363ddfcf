"""What tells that HyperPod has found a node broken, or replaces it."""

from __future__ import annotations

from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_sns as sns

from config.cluster import Cluster
from constructs import Construct
from constructs.policy.findings import acknowledge

REPLACEMENT = "*as part of instance replacement in Cluster*"
"""What descriptions of replacements have in common, begun, completed and failed (SageMaker developer guide,
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
