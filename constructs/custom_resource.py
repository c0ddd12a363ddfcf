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
"""Time for a function to give up with a message about the cause, before CloudFormation gives up without."""
GIVE_UP = Duration.minutes(55)
"""Time after which the provider stops calling; CloudFormation stops after an hour."""


class ResourceProvider(Construct):
    """Provider of custom resources.

    ``on_event`` of ``functions/<name>/index.py`` starts the work. ``is_complete`` is called until it returns
    true.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        name: str,
        description: str,
        statements: Sequence[Statement],
        seconds_between_calls: int,
        log: logs.CfnLogGroup,
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Create the two functions, their role and the provider.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            name: folder below ``functions/``.
            description: description of the functions and their role.
            statements: permissions of the functions.
            seconds_between_calls: interval of the calls of ``is_complete``.
            log: log group of the functions and the provider.
            files: texts of additional files beside the code, by name.
        """
        super().__init__(scope, construct_id)
        self.contents = f"functions/{content_hash(FUNCTIONS / name, files)}"
        """Hash of the code and its files, for resources to be updated when one of them changes."""
        role = function_role(self, "Role", description=description, statements=statements, log=log)
        with TemporaryDirectory(prefix=f"{name}-") as temporary:
            folder = Path(temporary) / name
            shutil.copytree(FUNCTIONS / name, folder, ignore=shutil.ignore_patterns(*IGNORED))
            for file, text in files.items():
                (folder / file).write_text(text)
            # Creating the functions copies the folder, which is then deleted.
            code = lambda_.Code.from_asset(str(folder))
            common: dict[str, Any] = {
                "description": description,
                "code": code,
                "role": role,
                "log": log,
            }
            on_event = python_function(self, "OnEvent", handler="on_event", **common)
            is_complete = python_function(self, "IsComplete", handler="is_complete", **common)
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
        """Create a custom resource.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            kind: part of the resource's type, ``Custom::HyperPod<kind>``.
            properties: properties that the function receives.
            wait: time from the function's first call after which it gives up.
        """
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
    """Create a role for functions, with the statements and permission to write to the log group."""
    write_logs = Statement(
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
        statements=[*statements, write_logs],
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
) -> lambda_.Function:
    """Create a function that runs ``handler`` of the code's ``index.py`` for a minute at most."""
    return lambda_.Function(
        scope,
        construct_id,
        description=description,
        runtime=lambda_.Runtime.PYTHON_3_14,
        architecture=lambda_.Architecture.ARM_64,
        code=code,
        handler=f"index.{handler}",
        timeout=Duration.minutes(1),
        role=role,
        log_group=logs.LogGroup.from_log_group_arn(scope, f"{construct_id}Log", log.attr_arn),
    )
