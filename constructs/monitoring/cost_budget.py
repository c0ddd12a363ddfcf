"""Monthly limit for the costs of a cluster."""

from aws_cdk import aws_budgets as budgets

from config.cluster import Budget, Cluster
from config.resource_names import CLUSTER_TAG
from constructs import Construct
from constructs.monitoring.alert_topic import AlertTopic


class CostBudget(Construct):
    """Budget that sends mail when the costs of a cluster pass the limit, or are forecast to pass it.

    Notifications also go to the topic, if there is one.

    The budget covers resources with the cluster's tag, and only after the tag is activated as a cost
    allocation tag. CloudFormation chooses the budget's name. Subscribers cannot be changed, only replaced
    together with the budget, and names are unique in the account across all regions.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        cluster: Cluster,
        budget: Budget,
        alerts: AlertTopic | None,
    ) -> None:
        super().__init__(scope, construct_id)
        subscribers = [{"subscriptionType": "EMAIL", "address": budget.email}]
        if alerts:
            subscribers.append({"subscriptionType": "SNS", "address": alerts.topic.topic_arn})
        budgets.CfnBudget(
            self,
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
