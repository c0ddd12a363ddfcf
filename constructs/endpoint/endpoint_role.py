"""Execution role of an endpoint."""

from aws_cdk import Stack
from aws_cdk import aws_kms as kms

from config.endpoint import Endpoint
from constructs import Construct
from constructs.nodes import node_roles
from constructs.policy.statement_role import (
    WRITE_LOGS,
    Statement,
    sagemaker_principal,
    statement_role,
)
from constructs.vpc.network import ANY_OWNER

METRICS_NAMESPACE = "/aws/sagemaker/Endpoints"
"""Namespace of the instances' metrics, and first part of the names of endpoints' log groups."""


class EndpointRole(Construct):
    """Role that may read one model and one image, write the endpoint's log, and do nothing else.

    The statements are those of "CreateModel API: Execution Role Permissions" in SageMaker's developer guide,
    narrowed to named resources. The container cannot use the role: with network isolation it receives no
    credentials.
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
            *node_roles.registry_statements(_repository_arn(stack, endpoint), sid="PullImage"),
            _log_statement(stack, endpoint),
            node_roles.metrics_statement(METRICS_NAMESPACE),
        ]
        if endpoint.capture:
            captured = endpoint.capture.to.removeprefix("s3://")
            statements.append(
                Statement(
                    "WriteCaptured",
                    ["s3:PutObject"],
                    [f"arn:{stack.partition}:s3:::{captured}/*"],
                    why="SageMaker names the files by date",
                )
            )
        if key:
            # Multipart uploads also need Decrypt.
            actions = ["kms:Decrypt", "kms:GenerateDataKey"]
            statements.append(Statement("EncryptCaptured", actions, [key.key_arn], _via_s3(stack)))
            statements += node_roles.volume_key_statements(stack, key.key_arn)
        if endpoint.vpc and security_group_id:
            statements += node_roles.network_statements(
                stack,
                owner=ANY_OWNER,
                vpc_id=endpoint.vpc.vpc_id,
                subnet_ids=endpoint.vpc.subnet_ids,
                security_group_arns=[
                    f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:security-group/"
                    f"{security_group_id}"
                ],
            )
        self.role = statement_role(
            self,
            "Role",
            description=f"SageMaker endpoint {endpoint.name}",
            assumed_by=sagemaker_principal(stack),
            policy_name="Hosting",
            statements=statements,
        )


def _repository_arn(stack: Stack, endpoint: Endpoint) -> str:
    """Return the ARN of the image's repository in ECR."""
    registry, _, image = endpoint.image.partition("/")
    account, _, _ = registry.partition(".")
    name, _, _ = image.partition("@")
    return f"arn:{stack.partition}:ecr:{stack.region}:{account}:repository/{name}"


def _log_statement(stack: Stack, endpoint: Endpoint) -> Statement:
    groups = f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:"
    group = f"{groups}{METRICS_NAMESPACE}/{endpoint.name}"
    streams = f"{group}:log-stream:*"
    return Statement(
        "WriteLog", WRITE_LOGS, [group, streams], why="streams are named after instances"
    )


def _model_statements(stack: Stack, endpoint: Endpoint) -> list[Statement]:
    """Return the permissions to read the model, which is an archive or a folder."""
    bucket, _, key = endpoint.model.removeprefix("s3://").partition("/")
    bucket_arn = f"arn:{stack.partition}:s3:::{bucket}"
    is_folder = key.endswith("/")
    objects = f"{key}*" if is_folder else key
    statements = [
        Statement(
            "ListModel", ["s3:ListBucket"], [bucket_arn], {"StringLike": {"s3:prefix": [objects]}}
        ),
        Statement(
            "ReadModel",
            ["s3:GetObject"],
            [f"{bucket_arn}/{objects}"],
            why="a model is all files of a folder" if is_folder else "",
        ),
    ]
    if endpoint.model_key_arn:
        key_arns = [endpoint.model_key_arn]
        statements.append(Statement("DecryptModel", ["kms:Decrypt"], key_arns, _via_s3(stack)))
    return statements


def _via_s3(stack: Stack) -> dict[str, dict[str, str | list[str]]]:
    """Return the condition that a key is used by S3."""
    return {"StringEquals": {"kms:ViaService": f"s3.{stack.region}.amazonaws.com"}}
