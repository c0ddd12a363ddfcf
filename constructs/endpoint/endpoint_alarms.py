"""What tells that an endpoint does not answer as it should."""

from __future__ import annotations

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions

from config.endpoint import Endpoint
from constructs import Construct
from constructs.endpoint.model_endpoint import BAKE_SECONDS, VARIANT
from constructs.policy.findings import skip_check

ROLLBACK_MINUTES = BAKE_SECONDS // 60
"""That an alarm looks back: one that needs longer cannot go off while an update may still be taken back."""


class EndpointAlarms(Construct):
    """Two alarms by which updates are rolled back, one when there is no room to scale, and who hears of them.

    Metrics are those of the SageMaker developer guide, "Monitor SageMaker AI with Amazon CloudWatch".
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, endpoint: Endpoint, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        names = {"EndpointName": endpoint.name, "VariantName": VARIANT}

        def metric(name: str, statistic: str) -> cloudwatch.Metric:
            return cloudwatch.Metric(
                namespace="AWS/SageMaker",
                metric_name=name,
                dimensions_map=names,
                statistic=statistic,
                period=Duration.minutes(1),
            )

        server_errors = cloudwatch.Alarm(
            self,
            "ServerErrors",
            alarm_description=f"{endpoint.name} answers with 5xx (503: too much waits); the log says why",
            metric=metric("Invocation5XXErrors", "Sum"),
            threshold=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            evaluation_periods=ROLLBACK_MINUTES,
            datapoints_to_alarm=3,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        latency = cloudwatch.Alarm(
            self,
            "Latency",
            alarm_description=f"one answer of {endpoint.name} in 20 takes longer than "
            f"{endpoint.alarms.latency_seconds} s",
            # In microseconds.
            metric=metric("ModelLatency", "p95"),
            threshold=endpoint.alarms.latency_seconds * 1_000_000,
            evaluation_periods=ROLLBACK_MINUTES,
            datapoints_to_alarm=3,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        full = cloudwatch.Alarm(
            self,
            "NoRoomToScale",
            alarm_description=f"{endpoint.name} has instances.max, and each more invocations than it should",
            metric=metric("InvocationsPerInstance", "Sum"),
            threshold=endpoint.instances.invocations_per_minute * 1.2,
            # Scaling takes some ten minutes to bring an instance; what lasts longer it cannot mend.
            evaluation_periods=30,
            datapoints_to_alarm=25,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        self.rollback = [server_errors, latency]
        if endpoint.alarms.email:
            topic = self._topic(endpoint.alarms.email, key)
            for alarm in (*self.rollback, full):
                alarm.add_alarm_action(actions.SnsAction(topic))

    def _topic(self, email: str, key: kms.IKey | None) -> sns.Topic:
        topic = sns.Topic(self, "Topic", enforce_ssl=True, master_key=key)
        # A policy of one's own takes the place of the one that lets the account's alarms publish.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="CloudWatchAlarms",
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}},
            )
        )
        if key:
            key.add_to_resource_policy(
                iam.PolicyStatement(
                    sid="CloudWatchAlarms",
                    principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                    actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                    # Whether the alarm's account comes along is not documented.
                    resources=["*"],
                )
            )
        else:
            resource = topic.node.default_child
            assert isinstance(resource, sns.CfnTopic)
            skip_check(resource, "CKV_AWS_26", "CloudWatch cannot publish under SNS's own key.")
        topic.add_subscription(subscriptions.EmailSubscription(email))
        return topic
