"""A monthly limit for what a cluster costs."""

from aws_cdk import aws_budgets as budgets

from config.cluster import Budget, Cluster
from config.resource_names import CLUSTER_TAG
from constructs import Construct
from constructs.monitoring.alert_topic import AlertTopic


def cost_budget(scope: Construct, cluster: Cluster, budget: Budget, alerts: AlertTopic | None) -> None:
    """Mail when the costs tagged with the cluster's name pass the limit, or are forecast to.

    They also go to the topic, if there is one.

    It sees only what carries the tag, and the tag only once it is activated as a cost allocation tag.
    CloudFormation makes up its name: subscribers cannot be changed, only replaced together with the budget,
    and names are unique in the account, over all regions.
    """
    subscribers = [{"subscriptionType": "EMAIL", "address": budget.email}]
    if alerts:
        subscribers.append({"subscriptionType": "SNS", "address": alerts.topic.topic_arn})
    budgets.CfnBudget(
        Construct(scope, "Budget"),
        "Budget",
        budget=budgets.CfnBudget.BudgetDataProperty(
            budget_type="COST",
            time_unit="MONTHLY",
            budget_limit=budgets.CfnBudget.SpendProperty(amount=budget.monthly_usd, unit="USD"),
            cost_filters={"TagKeyValue": [f"user:{CLUSTER_TAG}${cluster.name}"]},
        ),
        notifications_with_subscribers=[
            budgets.CfnBudget.NotificationWithSubscribersProperty(
                notification={
                    "notificationType": kind,
                    "comparisonOperator": "GREATER_THAN",
                    "threshold": 100,
                    "thresholdType": "PERCENTAGE",
                },
                subscribers=subscribers,
            )
            for kind in ("ACTUAL", "FORECASTED")
        ],
    )
