"""Alarms of an endpoint, and the topic that they notify."""

from dataclasses import dataclass

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions

from config.endpoint import Endpoint
from constructs import Construct
from constructs.endpoint.model_endpoint import BAKE_SECONDS, VARIANT
from constructs.monitoring.alert_topic import let_encrypt, let_publish
from constructs.policy.findings import skip_check

ROLLBACK_MINUTES = BAKE_SECONDS // 60
"""Minutes that an alarm evaluates. A longer alarm could not fire while an update can still roll back."""
ROLLBACK_DATAPOINTS = 3
"""Minutes of ``ROLLBACK_MINUTES`` that must exceed the threshold."""
FULL_MINUTES = 30
"""Minutes that the alarm for missing room to scale evaluates. Scaling adds an instance in about ten minutes,
so only longer overload is a lack of instances."""
FULL_DATAPOINTS = 25
"""Minutes of ``FULL_MINUTES`` that must exceed the threshold."""
FULL_SHARE = 1.2
"""Invocations per instance that count as overload, relative to the number that scaling aims at."""
MICROSECONDS = 1_000_000
"""Microseconds per second, because the service reports latency in microseconds."""

_CLOUDWATCH = "cloudwatch.amazonaws.com"


@dataclass(frozen=True)
class _Limit:
    """Metric of the endpoint and its limit."""

    metric: str
    """Metric of "Monitor SageMaker AI with Amazon CloudWatch" in SageMaker's developer guide."""
    statistic: str
    threshold: float
    minutes: int = ROLLBACK_MINUTES
    datapoints: int = ROLLBACK_DATAPOINTS


class EndpointAlarms(Construct):
    """Three alarms and their topic.

    Two of the alarms roll updates back; the third reports missing room to scale.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, endpoint: Endpoint, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, construct_id)
        self._endpoint = endpoint
        server_errors = self._alarm(
            "ServerErrors",
            f"{endpoint.name} answers with 5xx (503: too many requests wait); see its log",
            _Limit("Invocation5XXErrors", "Sum", threshold=1),
        )
        latency_seconds = endpoint.alarms.latency_seconds
        latency = self._alarm(
            "Latency",
            f"one answer of {endpoint.name} in 20 takes longer than {latency_seconds} s",
            _Limit("ModelLatency", "p95", threshold=latency_seconds * MICROSECONDS),
        )
        full = self._alarm(
            "NoRoomToScale",
            f"{endpoint.name} runs instances.max instances, and each receives more invocations than "
            "intended: raise instances.max",
            _Limit(
                "InvocationsPerInstance",
                "Sum",
                threshold=endpoint.instances.invocations_per_minute * FULL_SHARE,
                minutes=FULL_MINUTES,
                datapoints=FULL_DATAPOINTS,
            ),
        )
        self.rollback = [server_errors, latency]
        """Alarms that roll updates back."""
        if endpoint.alarms.email:
            topic = _topic(self, endpoint.alarms.email, key)
            for alarm in (server_errors, latency, full):
                alarm.add_alarm_action(actions.SnsAction(topic))

    def _alarm(self, construct_id: str, description: str, limit: _Limit) -> cloudwatch.Alarm:
        return cloudwatch.Alarm(
            self,
            construct_id,
            alarm_description=description,
            metric=cloudwatch.Metric(
                namespace="AWS/SageMaker",
                metric_name=limit.metric,
                dimensions_map={"EndpointName": self._endpoint.name, "VariantName": VARIANT},
                statistic=limit.statistic,
                period=Duration.minutes(1),
            ),
            threshold=limit.threshold,
            evaluation_periods=limit.minutes,
            datapoints_to_alarm=limit.datapoints,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )


def _topic(scope: Construct, email: str, key: kms.IKey | None) -> sns.Topic:
    topic = sns.Topic(scope, "Topic", enforce_ssl=True, master_key=key)
    let_publish(topic, "CloudWatchAlarms", _CLOUDWATCH)
    if key:
        let_encrypt(key, "CloudWatchAlarms", _CLOUDWATCH)
    else:
        resource = topic.node.default_child
        assert isinstance(resource, sns.CfnTopic)
        skip_check(resource, "CKV_AWS_26", "CloudWatch cannot publish under SNS's own key.")
    topic.add_subscription(subscriptions.EmailSubscription(email))
    return topic
