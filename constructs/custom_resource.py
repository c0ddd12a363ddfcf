"""Providers of custom resources: Lambda functions that CloudFormation calls until they have finished."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from aws_cdk import CustomResource, Duration, custom_resources
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs

from config.content_hash import IGNORED, content_hash
from constructs import Construct
from constructs.policy.findings import acknowledge_provider
from constructs.policy.statement_role import Statement, statement_role

FUNCTIONS = Path(__file__).parents[1] / "functions"
WAIT = Duration.minutes(50)
"""For functions to give up with a message that has the cause: ten minutes before CloudFormation does."""
GIVE_UP = Duration.minutes(55)


class ResourceProvider(Construct):
    """Provider of custom resources: ``on_event`` of ``functions/<name>/index.py`` starts the work, and
    ``is_complete`` is called until it returns true.

    ``files`` are texts to lie beside the code; ``contents`` names these and the code, for resources that are
    to be updated when one of them changes.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        description: str,
        statements: Sequence[Statement],
        seconds_between_calls: int,
        log: logs.CfnLogGroup,
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(scope, "Function")
        self.contents = f"functions/{content_hash(FUNCTIONS / name, files)}"
        role = function_role(self, "Role", description=description, statements=statements, log=log)
        with TemporaryDirectory(prefix=f"{name}-") as temporary:
            folder = Path(temporary) / name
            shutil.copytree(FUNCTIONS / name, folder, ignore=shutil.ignore_patterns(*IGNORED))
            for file, text in files.items():
                (folder / file).write_text(text)
            # It is copied while a function is made of it.
            code = lambda_.Code.from_asset(str(folder))
            on_event, is_complete = (
                python_function(
                    self,
                    construct_id,
                    description=description,
                    code=code,
                    handler=handler,
                    role=role,
                    log=log,
                )
                for construct_id, handler in (("OnEvent", "on_event"), ("IsComplete", "is_complete"))
            )
        provider = custom_resources.Provider(
            self,
            "Provider",
            on_event_handler=on_event,
            is_complete_handler=is_complete,
            query_interval=Duration.seconds(seconds_between_calls),
            total_timeout=GIVE_UP,
            log_group=logs.LogGroup.from_log_group_arn(self, "Log", log.attr_arn),
            disable_waiter_state_machine_logging=True,
        )
        self._service_token = provider.service_token
        acknowledge_provider(self)

    def resource(
        self,
        scope: Construct,
        construct_id: str,
        kind: str,
        properties: Mapping[str, Any],
        wait: Duration = WAIT,
    ) -> CustomResource:
        """Create a resource for which the function has ``wait`` from its first call on."""
        return CustomResource(
            scope,
            construct_id,
            resource_type=f"Custom::HyperPod{kind}",
            service_token=self._service_token,
            properties={**properties, "TimeoutSeconds": wait.to_seconds()},
        )


def function_role(
    scope: Construct,
    construct_id: str,
    *,
    description: str,
    statements: Sequence[Statement],
    log: logs.CfnLogGroup,
) -> iam.Role:
    """Create the role of functions that may do what the statements say, and write to the log group."""
    write = Statement(
        "WriteLogs",
        ["logs:CreateLogStream", "logs:PutLogEvents"],
        # The attribute ends with ":*" and means the group's streams.
        [log.attr_arn],
    )
    return statement_role(
        scope,
        construct_id,
        description=description,
        assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        policy_name="Function",
        statements=[*statements, write],
    )


def python_function(
    scope: Construct,
    construct_id: str,
    *,
    description: str,
    code: lambda_.Code,
    handler: str,
    role: iam.IRole,
    log: logs.CfnLogGroup,
    environment: Mapping[str, str] | None = None,
) -> lambda_.Function:
    """Create a function of ``index.py`` in the code, whose ``handler`` has a minute."""
    return lambda_.Function(
        scope,
        construct_id,
        description=description,
        runtime=lambda_.Runtime.PYTHON_3_14,
        architecture=lambda_.Architecture.ARM_64,
        code=code,
        handler=f"index.{handler}",
        timeout=Duration.minutes(1),
        environment=environment,
        role=role,
        log_group=logs.LogGroup.from_log_group_arn(scope, f"{construct_id}Log", log.attr_arn),
    )
