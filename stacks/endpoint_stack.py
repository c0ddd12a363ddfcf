"""Stack of a model behind a SageMaker endpoint, which is independent of clusters."""

from typing import Any

from aws_cdk import App, CfnOutput, Environment, RemovalPolicy, Stack, Tags
from aws_cdk import aws_ec2 as ec2

from config.endpoint import Endpoint, EndpointVpc
from config.resource_names import PROJECT, PROJECT_TAG
from constructs import Construct
from constructs.endpoint.endpoint_alarms import EndpointAlarms
from constructs.endpoint.endpoint_role import METRICS_NAMESPACE, EndpointRole
from constructs.endpoint.model_endpoint import ModelEndpoint
from constructs.policy.role_settings import apply_role_settings
from constructs.storage.encryption_key import encryption_key
from constructs.storage.log_group import log_group

ENDPOINT_TAG = "esm2-endpoint"
"""Tag with the endpoint's name."""


class EndpointStack(Stack):
    """Endpoint with its role, alarms, log and key."""

    def __init__(
        self, scope: Construct, construct_id: str, *, endpoint: Endpoint, **stack_arguments: Any
    ) -> None:
        super().__init__(scope, construct_id, **stack_arguments)
        key = encryption_key(
            self,
            "Key",
            setting=endpoint.kms,
            alias=f"{endpoint.name}-endpoint",
            # Captured data outlive the stack, and need the key.
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
        execution = EndpointRole(
            self, "Role", endpoint=endpoint, key=key, security_group_id=security_group_id
        )
        alarms = EndpointAlarms(self, "Alarms", endpoint=endpoint, key=key)
        model = ModelEndpoint(
            self,
            "Model",
            endpoint=endpoint,
            role=execution.role,
            key=key,
            security_group_id=security_group_id,
            rollback_alarms=alarms.rollback,
        )
        # Without the dependency, the service would create the group, without a key or a retention period.
        model.resource.add_resource_dependency(log)
        CfnOutput(self, "EndpointName", value=endpoint.name)
        CfnOutput(self, "LogGroup", value=str(log.log_group_name))

    def _security_group(self, vpc: EndpointVpc) -> ec2.CfnSecurityGroup:
        """Create a group without ingress, because SageMaker itself passes requests on.

        Egress is only HTTPS, by which the model is read from S3.
        """
        https = ec2.CfnSecurityGroup.EgressProperty(
            ip_protocol="tcp",
            from_port=443,
            to_port=443,
            cidr_ip="0.0.0.0/0",
            description="model from S3",
        )
        return ec2.CfnSecurityGroup(
            self,
            "SecurityGroup",
            vpc_id=vpc.vpc_id,
            group_description="SageMaker endpoint",
            security_group_egress=[https],
        )


def add_endpoint_stack(app: App, endpoint: Endpoint) -> None:
    """Add the stack of an endpoint; the account is that of the credentials at deployment."""
    stack = EndpointStack(
        app,
        "EndpointStack",
        endpoint=endpoint,
        env=Environment(region=endpoint.region),
        stack_name=f"{endpoint.name}-endpoint",
    )
    for name, value in {**endpoint.tags, PROJECT_TAG: PROJECT, ENDPOINT_TAG: endpoint.name}.items():
        Tags.of(stack).add(name, value)
    apply_role_settings(stack, endpoint.iam)
