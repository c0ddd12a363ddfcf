"""SNS topic that receives alerts and alarms."""

from collections.abc import Mapping, Sequence

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions

from config.observability import Observability
from constructs import Construct
from constructs.storage.encryption_key import encryption_key, let_use

_SERVICES = {
    "Budgets": "budgets.amazonaws.com",
    "CloudWatch": "cloudwatch.amazonaws.com",
    "EventBridge": "events.amazonaws.com",
}
"""Service principals that may publish, by the ids of their statements."""
PROMETHEUS = "aps.amazonaws.com"
"""Service principal of Amazon Managed Service for Prometheus; its workspace adds the statement."""


class AlertTopic(Construct):
    """Encrypted topic that alarms, budget, HyperPod's events and Prometheus publish to, and that sends mail.

    With SNS's own key no service could publish, so a topic without the cluster's key creates its own.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        settings: Observability,
        key: kms.IKey | None,
    ) -> None:
        """Create the topic, its subscriptions and, if necessary, its key.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            name: cluster name, for the topic's display name and the alias of its own key.
            settings: mail addresses of the subscribers.
            key: key of the cluster, if it has one.
        """
        super().__init__(scope, construct_id)
        topic_key = key or encryption_key(
            self,
            "Key",
            setting="create",
            alias=f"{name}-alerts",
            # Messages are stored for seconds only.
            removal=RemovalPolicy.DESTROY,
        )
        assert topic_key is not None
        for service_name, service in {**_SERVICES, "Prometheus": PROMETHEUS}.items():
            let_encrypt(topic_key, f"{service_name}Alerts", service)
        self.topic = sns.Topic(
            self, "Topic", display_name=f"HyperPod {name}", enforce_ssl=True, master_key=topic_key
        )
        for email in settings.emails:
            self.topic.add_subscription(subscriptions.EmailSubscription(email))
        for service_name, service in _SERVICES.items():
            # EventBridge is not documented to send the account to SNS, and a refusal would be silent.
            by_account = service_name != "EventBridge"
            let_publish(self.topic, service_name, service, by_account=by_account)


def let_encrypt(key: kms.IKey, sid: str, service: str) -> None:
    """Let a service publish to topics that use the key."""
    # Without a condition, because not all services are documented to send the account that they act for.
    actions = ["kms:Decrypt", "kms:GenerateDataKey*"]
    let_use(key, sid, iam.ServicePrincipal(service), actions=actions)


def let_publish(
    topic: sns.Topic,
    sid: str,
    service: str,
    *,
    actions: Sequence[str] = ("sns:Publish",),
    conditions: Mapping[str, Mapping[str, str]] | None = None,
    by_account: bool = True,
) -> None:
    """Let a service publish to a topic.

    The topic's policy replaces SNS's default policy, which would let the account's alarms publish.

    Args:
        topic: topic of the stack.
        sid: id of the statement.
        service: service principal.
        actions: actions that the service may call.
        conditions: additional conditions.
        by_account: whether the service must act for this account.
    """
    all_conditions = dict(conditions or {})
    if by_account:
        all_conditions["StringEquals"] = {"aws:SourceAccount": Stack.of(topic).account}
    topic.add_to_resource_policy(
        iam.PolicyStatement(
            sid=sid,
            principals=[iam.ServicePrincipal(service)],
            actions=[*actions],
            resources=[topic.topic_arn],
            conditions=all_conditions,
        )
    )
