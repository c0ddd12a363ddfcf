"""Custom resources that take their time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aws_cdk import Duration, custom_resources
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs

from constructs import Construct
from constructs.node_statements import Statement
from constructs.provider_findings import acknowledge_provider
from constructs.statement_role import statement_role

FUNCTIONS = Path(__file__).parents[1] / "functions"
WAIT = Duration.minutes(50)
"""For functions to give up with a message that has the cause: ten minutes before CloudFormation does."""
GIVE_UP = Duration.minutes(55)


class PolledResource(Construct):
    """What answers for custom resources: ``on_event`` of ``functions/<name>/index.py`` starts, and
    ``is_complete`` is asked until it says yes.

    A resource has ``service_token``.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        description: str,
        statements: Sequence[Statement],
        query_interval: Duration,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        write = Statement(
            "WriteLogs",
            ["logs:CreateLogStream", "logs:PutLogEvents"],
            # The attribute ends with ":*" and means the group's streams.
            [log.attr_arn],
        )
        role = statement_role(
            self,
            "Role",
            description=description,
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            policy_name="Function",
            statements=[*statements, write],
        )
        log_group = logs.LogGroup.from_log_group_arn(self, "Log", log.attr_arn)
        on_event, is_complete = (
            lambda_.Function(
                self,
                construct_id,
                description=description,
                runtime=lambda_.Runtime.PYTHON_3_14,
                architecture=lambda_.Architecture.ARM_64,
                code=lambda_.Code.from_asset(str(FUNCTIONS / name), exclude=["__pycache__", "*.pyc"]),
                handler=f"index.{handler}",
                timeout=Duration.minutes(1),
                role=role,
                log_group=log_group,
            )
            for construct_id, handler in (("OnEvent", "on_event"), ("IsComplete", "is_complete"))
        )
        provider = custom_resources.Provider(
            self,
            "Provider",
            on_event_handler=on_event,
            is_complete_handler=is_complete,
            query_interval=query_interval,
            total_timeout=GIVE_UP,
            log_group=log_group,
            disable_waiter_state_machine_logging=True,
        )
        self.service_token = provider.service_token
        acknowledge_provider(self)
