"""SNS topic that receives alerts and alarms."""

from collections.abc import Mapping

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions

from config.cluster import Cluster
from config.observability import Observability
from constructs import Construct
from constructs.storage.encryption_key import encryption_key, let_use

_SERVICES = {
    "Budgets": "budgets.amazonaws.com",
    "CloudWatch": "cloudwatch.amazonaws.com",
    "EventBridge": "events.amazonaws.com",
}
PROMETHEUS = "aps.amazonaws.com"


class AlertTopic(Construct):
    """Encrypted topic to which alarms, budget, HyperPod's events and Prometheus may publish; mails are sent.

    SNS's own key lets no service publish: without a key of the cluster's the topic has one of its own.
    """

    def __init__(
        self, scope: Construct, *, cluster: Cluster, settings: Observability, key: kms.IKey | None
    ) -> None:
        super().__init__(scope, "Alerts")
        own_key = key or encryption_key(
            self,
            "Key",
            setting="create",
            alias=f"{cluster.name}-alerts",
            # What it encrypts is on its way for seconds.
            removal=RemovalPolicy.DESTROY,
        )
        assert own_key is not None
        for name, service in {**_SERVICES, "Prometheus": PROMETHEUS}.items():
            let_encrypt(own_key, f"{name}Alerts", service)
        self.topic = sns.Topic(
            self, "Topic", display_name=f"HyperPod {cluster.name}", enforce_ssl=True, master_key=own_key
        )
        for email in settings.emails:
            self.topic.add_subscription(subscriptions.EmailSubscription(email))
        for name, service in _SERVICES.items():
            # A refusal would be silent. EventBridge is not documented to send the account to SNS.
            let_publish(self.topic, name, service, by_account=name != "EventBridge")


def let_encrypt(key: kms.IKey, sid: str, service: str) -> None:
    """Let a service publish to topics under the key."""
    # Without a condition: not all services are documented to send the account that they work for.
    actions = ["kms:Decrypt", "kms:GenerateDataKey*"]
    let_use(key, sid, iam.ServicePrincipal(service), actions=actions)


def let_publish(
    topic: sns.Topic,
    sid: str,
    service: str,
    conditions: Mapping[str, Mapping[str, str]] | None = None,
    *more: str,
    by_account: bool = True,
) -> None:
    """Let a service publish, by default only for this account.

    A policy of one's own takes the place of the one that lets the account's alarms publish.
    """
    account = {"StringEquals": {"aws:SourceAccount": Stack.of(topic).account}} if by_account else {}
    topic.add_to_resource_policy(
        iam.PolicyStatement(
            sid=sid,
            principals=[iam.ServicePrincipal(service)],
            actions=["sns:Publish", *more],
            resources=[topic.topic_arn],
            conditions={**account, **(conditions or {})},
        )
    )
