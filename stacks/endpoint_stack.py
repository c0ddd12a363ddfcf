"""A model behind a SageMaker endpoint: no cluster is needed, and none is touched."""

from typing import Any

from aws_cdk import App, CfnOutput, Environment, RemovalPolicy, Stack, Tags
from aws_cdk import aws_ec2 as ec2

from config.endpoint import Endpoint, EndpointVpc
from config.resource_names import PROJECT, PROJECT_TAG
from constructs import Construct
from constructs.endpoint.model_endpoint import (
    METRICS_NAMESPACE,
    endpoint_alarms,
    endpoint_role,
    model_endpoint,
)
from constructs.policy.role_settings import apply_role_settings
from constructs.storage.encryption_key import encryption_key
from constructs.storage.log_group import log_group


class EndpointStack(Stack):
    def __init__(self, scope: Construct, construct_id: str, *, endpoint: Endpoint, **kwargs: Any) -> None:
        super().__init__(scope, construct_id, **kwargs)
        key = encryption_key(
            self,
            "Key",
            setting=endpoint.kms,
            alias=f"{endpoint.name}-endpoint",
            # What was captured stays, and stays readable.
            removal=RemovalPolicy.RETAIN if endpoint.capture else RemovalPolicy.DESTROY,
        )
        log = log_group(
            self,
            "Log",
            key=key,
            retention_days=endpoint.log_days,
            log_group_name=f"{METRICS_NAMESPACE}/{endpoint.name}",
        )
        security_group = self._security_group(endpoint.vpc) if endpoint.vpc else None
        security_group_id = security_group.attr_group_id if security_group else None
        role = endpoint_role(self, endpoint, key, security_group_id)
        model = model_endpoint(
            self,
            endpoint=endpoint,
            role=role,
            key=key,
            security_group_id=security_group_id,
            rollback_alarms=endpoint_alarms(self, endpoint, key),
        )
        # The service would otherwise create it without a key and without an end.
        model.add_resource_dependency(log)
        for name, value in (("EndpointName", endpoint.name), ("LogGroup", str(log.log_group_name))):
            CfnOutput(self, name, value=value)

    def _security_group(self, vpc: EndpointVpc) -> ec2.CfnSecurityGroup:
        """Nothing comes in: SageMaker hands requests on by itself. Out goes what brings the model from S3."""
        https = ec2.CfnSecurityGroup.EgressProperty(
            ip_protocol="tcp", from_port=443, to_port=443, cidr_ip="0.0.0.0/0", description="model from S3"
        )
        return ec2.CfnSecurityGroup(
            self,
            "SecurityGroup",
            vpc_id=vpc.vpc_id,
            group_description="SageMaker endpoint",
            security_group_egress=[https],
        )


def add_endpoint_stack(app: App, endpoint: Endpoint) -> None:
    stack = EndpointStack(
        app,
        "EndpointStack",
        endpoint=endpoint,
        env=Environment(region=endpoint.region),
        stack_name=f"{endpoint.name}-endpoint",
    )
    for name, value in {**endpoint.tags, PROJECT_TAG: PROJECT, "esm2-endpoint": endpoint.name}.items():
        Tags.of(stack).add(name, value)
    apply_role_settings(stack, endpoint.iam)
