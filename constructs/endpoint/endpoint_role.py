"""IAM role with which SageMaker hosts a model."""

from aws_cdk import Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from config.endpoint import Endpoint
from constructs import Construct
from constructs.nodes.node_roles import (
    metrics_statement,
    network_statements,
    registry_statements,
    volume_key_statements,
)
from constructs.policy.statement_role import WRITE_LOGS, Statement, sagemaker_principal, statement_role

METRICS_NAMESPACE = "/aws/sagemaker/Endpoints"
"""Namespace of the instances' metrics; log groups of endpoints begin with the same."""


def endpoint_role(
    scope: Construct,
    construct_id: str,
    *,
    endpoint: Endpoint,
    key: kms.IKey | None,
    security_group_id: str | None,
) -> iam.Role:
    """Create a role that may read this model and this image, and write this endpoint's log, and nothing else.

    SageMaker developer guide, "CreateModel API: Execution Role Permissions", narrowed to named resources. The
    container has no part in it: with network isolation it gets no credentials.
    """
    stack = Stack.of(scope)
    registry, _, rest = endpoint.image.partition("/")
    repository = f"{stack.region}:{registry.split('.')[0]}:repository/{rest.partition('@')[0]}"
    logs = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:"
    group = f"{logs}{METRICS_NAMESPACE}/{endpoint.name}"
    statements = [
        *_model_statements(stack, endpoint),
        *registry_statements(f"arn:{stack.partition}:ecr:{repository}", sid="PullImage"),
        Statement(
            "WriteLog",
            WRITE_LOGS,
            [group, f"{group}:log-stream:*"],
            why_wildcard="streams are named after instances",
        ),
        metrics_statement(METRICS_NAMESPACE),
    ]
    if endpoint.capture:
        statements.append(
            Statement(
                "WriteCaptured",
                ["s3:PutObject"],
                [f"arn:{stack.partition}:s3:::{endpoint.capture.to.removeprefix('s3://')}/*"],
                why_wildcard="SageMaker names the files by date",
            )
        )
    if key:
        via_s3 = {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}}
        statements += [
            # S3 decrypts, too, what comes to it in several parts.
            Statement("EncryptCaptured", ["kms:Decrypt", "kms:GenerateDataKey"], [key.key_arn], via_s3),
            *volume_key_statements(stack, key.key_arn),
        ]
    if endpoint.vpc and security_group_id:
        statements += network_statements(
            stack,
            vpc_id=endpoint.vpc.vpc_id,
            subnet_ids=endpoint.vpc.subnet_ids,
            security_group_id=security_group_id,
        )
    return statement_role(
        Construct(scope, construct_id),
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
