"""The identity with which SageMaker hosts a model."""

from __future__ import annotations

from aws_cdk import Stack
from aws_cdk import aws_kms as kms

from config.endpoint import Endpoint
from constructs import Construct
from constructs.nodes.node_roles import (
    metrics_statement,
    network_statements,
    registry_statements,
    volume_key_statements,
)
from constructs.policy.statement_role import Statement, sagemaker_principal, statement_role

METRICS_NAMESPACE = "/aws/sagemaker/Endpoints"
"""Of the instances' own metrics; log groups of endpoints begin with the same."""


class EndpointRole(Construct):
    """May read this model and this image, write this endpoint's log, and nothing of anybody else's.

    SageMaker developer guide, "CreateModel API: Execution Role Permissions", narrowed to named resources. The
    container has no part in it: with network isolation it gets no credentials.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        endpoint: Endpoint,
        key: kms.IKey | None,
        security_group_id: str | None,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        statements = [
            *_model_statements(stack, endpoint),
            *_image_statements(stack, endpoint.image),
            *_log_statements(stack, endpoint.name),
        ]
        if endpoint.capture:
            statements.append(_capture_statement(stack, endpoint.capture.to))
        if key:
            statements += _key_statements(stack, key.key_arn)
        if endpoint.vpc and security_group_id:
            statements += network_statements(
                stack,
                vpc_id=endpoint.vpc.vpc_id,
                subnet_ids=endpoint.vpc.subnet_ids,
                security_group_id=security_group_id,
            )
        self.role = statement_role(
            self,
            "Role",
            description=f"SageMaker endpoint {endpoint.name}",
            assumed_by=sagemaker_principal(stack),
            policy_name="Hosting",
            statements=statements,
        )


def _model_statements(stack: Stack, endpoint: Endpoint) -> list[Statement]:
    bucket, _, key = endpoint.model.removeprefix("s3://").partition("/")
    bucket_arn = f"arn:{stack.partition}:s3:::{bucket}"
    is_folder = key.endswith("/")
    found = [
        Statement(
            "ListModel",
            ["s3:ListBucket"],
            [bucket_arn],
            {"StringLike": {"s3:prefix": [f"{key}*" if is_folder else key]}},
        ),
        Statement(
            "ReadModel",
            ["s3:GetObject"],
            [f"{bucket_arn}/{key}{'*' if is_folder else ''}"],
            why_wildcard="a model is all files of a folder" if is_folder else "",
        ),
    ]
    if endpoint.model_key_arn:
        via = {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}
        found.append(
            Statement("DecryptModel", ["kms:Decrypt"], [endpoint.model_key_arn], {"StringEquals": via})
        )
    return found


def _image_statements(stack: Stack, image: str) -> list[Statement]:
    registry, _, rest = image.partition("/")
    account, repository = registry.split(".")[0], rest.partition("@")[0]
    repository_arn = f"arn:{stack.partition}:ecr:{stack.region}:{account}:repository/{repository}"
    return registry_statements(repository_arn, sid="PullImage")


def _log_statements(stack: Stack, name: str) -> list[Statement]:
    group = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:{METRICS_NAMESPACE}/{name}"
    return [
        Statement(
            "WriteLog",
            ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            [group, f"{group}:log-stream:*"],
            why_wildcard="streams are named after instances",
        ),
        metrics_statement(METRICS_NAMESPACE),
    ]


def _capture_statement(stack: Stack, folder: str) -> Statement:
    place = folder.removeprefix("s3://")
    return Statement(
        "WriteCaptured",
        ["s3:PutObject"],
        [f"arn:{stack.partition}:s3:::{place}/*"],
        why_wildcard="SageMaker names the files by date",
    )


def _key_statements(stack: Stack, key_arn: str) -> list[Statement]:
    via_s3 = {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}
    return [
        # S3 decrypts, too, what comes to it in several parts.
        Statement(
            "EncryptCaptured", ["kms:Decrypt", "kms:GenerateDataKey"], [key_arn], {"StringEquals": via_s3}
        ),
        *volume_key_statements(stack, key_arn),
    ]
