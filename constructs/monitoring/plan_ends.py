"""Alarms before the end of the training plans that a cluster uses."""

from collections.abc import Sequence

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns

from config.content_hash import IGNORED
from config.facts.training_plans import WARNING_DAYS, plan_name
from constructs import Construct
from constructs.custom_resource import FUNCTIONS, function_role, python_function
from constructs.monitoring.health_log import NAMESPACE
from constructs.policy.findings import acknowledge
from constructs.policy.statement_role import Statement

METRIC = "DaysToPlanEnd"
DIMENSION = "TrainingPlan"
DESCRIPTION = "Publishes the days to the end of training plans"
_PERIOD = Duration.hours(1)
_FAILURE_PERIOD = Duration.hours(6)
_FAILURES = 6
"""Failed calls in ``_FAILURE_PERIOD`` for an alarm. Each hourly call is tried three times."""


class PlanEndAlarms(Construct):
    """Function that reads the plans' ends every hour, and alarms for each plan."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan_arns: Sequence[str],
        topic: sns.ITopic,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        names = [plan_name(arn) for arn in plan_arns]
        function = self._function(plan_arns, log)
        rule = events.Rule(
            self,
            "Hourly",
            description=f"{DESCRIPTION}: {', '.join(names)}",
            schedule=events.Schedule.rate(_PERIOD),
            targets=[
                targets.LambdaFunction(
                    function,
                    event=events.RuleTargetInput.from_object(
                        {
                            "Plans": names,
                            "Namespace": NAMESPACE,
                            "MetricName": METRIC,
                            "Dimension": DIMENSION,
                        }
                    ),
                )
            ],
        )
        reason = "rule and function are in the same stack"
        acknowledge(rule, {"Annotation::@aws-cdk/aws-events:ruleUnresolvedEnvironment": reason})
        for name in names:
            for days in WARNING_DAYS:
                _end_alarm(self, name, days, topic)
        cloudwatch.CfnAlarm(
            self,
            "Unread",
            alarm_description=(
                f"the ends of the training plans {', '.join(names)} cannot be read, so that no alarm comes "
                f"before them: see the log of the function {function.function_name}, and `make plans-list`"
            ),
            namespace="AWS/Lambda",
            metric_name="Errors",
            dimensions=[{"name": "FunctionName", "value": function.function_name}],
            statistic="Sum",
            period=_FAILURE_PERIOD.to_seconds(),
            evaluation_periods=1,
            comparison_operator="GreaterThanOrEqualToThreshold",
            threshold=_FAILURES,
            treat_missing_data="notBreaching",
            alarm_actions=[topic.topic_arn],
        )

    def _function(self, plan_arns: Sequence[str], log: logs.CfnLogGroup) -> lambda_.Function:
        role = function_role(
            self,
            "Role",
            description=DESCRIPTION,
            statements=[
                Statement("ReadPlans", ["sagemaker:DescribeTrainingPlan"], [*plan_arns]),
                Statement(
                    "PublishDays",
                    ["cloudwatch:PutMetricData"],
                    ["*"],
                    conditions={"StringEquals": {"cloudwatch:namespace": NAMESPACE}},
                    why="metrics have no ARN; the condition limits the namespace",
                ),
            ],
            log=log,
        )
        return python_function(
            self,
            "Function",
            description=DESCRIPTION,
            code=lambda_.Code.from_asset(str(FUNCTIONS / "plan_ends"), exclude=[*IGNORED]),
            handler="publish",
            role=role,
            log=log,
        )


def _end_alarm(scope: Construct, plan: str, days: int, topic: sns.ITopic) -> None:
    unit = "day" if days == 1 else "days"
    cloudwatch.CfnAlarm(
        scope,
        f"{plan}-{days}",
        alarm_description=(
            f"training plan {plan} ends in {days} {unit} or less, and its nodes are taken away then: `make "
            f"plans-search PLAN={plan}` lists extensions. Without one, let jobs save, and set another plan "
            "or none (training_plan_arn) in the cluster file"
        ),
        namespace=NAMESPACE,
        metric_name=METRIC,
        dimensions=[{"name": DIMENSION, "value": plan}],
        statistic="Minimum",
        period=_PERIOD.to_seconds(),
        evaluation_periods=1,
        comparison_operator="LessThanOrEqualToThreshold",
        threshold=days,
        treat_missing_data="ignore",
        alarm_actions=[topic.topic_arn],
        ok_actions=[topic.topic_arn],
    )
