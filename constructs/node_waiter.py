"""What stands between the cluster and all that needs its nodes."""

from __future__ import annotations

from pathlib import Path

from aws_cdk import CustomResource, Duration, custom_resources
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs

from config.eks_cluster import EksCluster
from config.system_groups import system_groups
from constructs import Construct
from constructs.eks_hyperpod_cluster import EksHyperPodCluster
from constructs.provider_findings import acknowledge_provider

CODE = Path(__file__).parents[1] / "functions" / "nodes_ready"
WAIT = Duration.minutes(50)
"""Below the hour that CloudFormation gives a custom resource, so that the message with the cause
comes first."""
GIVE_UP = Duration.minutes(55)


class NodeWaiter(Construct):
    """In place when the groups for Kubernetes's own pods have nodes; deleted at once.

    What needs nodes depends on ``resource``.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: EksCluster,
        hyperpod: EksHyperPodCluster,
        log: logs.CfnLogGroup,
    ) -> None:
        super().__init__(scope, construct_id)
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            inline_policies={
                "ListNodes": iam.PolicyDocument(
                    statements=[
                        iam.PolicyStatement(
                            actions=["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes"],
                            resources=[hyperpod.arn],
                        ),
                        iam.PolicyStatement(
                            actions=["logs:CreateLogStream", "logs:PutLogEvents"],
                            # The attribute ends with ":*" and means the group's streams.
                            resources=[log.attr_arn],
                        ),
                    ]
                )
            },
        )
        log_group = logs.LogGroup.from_log_group_arn(self, "Log", log.attr_arn)
        on_event, is_complete = (
            self._function(name, handler, role, log_group)
            for name, handler in (("OnEvent", "on_event"), ("IsComplete", "is_complete"))
        )
        provider = custom_resources.Provider(
            self,
            "Provider",
            on_event_handler=on_event,
            is_complete_handler=is_complete,
            query_interval=Duration.seconds(30),
            total_timeout=GIVE_UP,
            log_group=log_group,
            disable_waiter_state_machine_logging=True,
        )
        self.resource = CustomResource(
            self,
            "Resource",
            resource_type="Custom::HyperPodNodes",
            service_token=provider.service_token,
            properties={
                "ClusterName": settings.name,
                # A group of more waits for the first node alone, unless the file wants more at least.
                "Groups": {group.name: group.min_instances or 1 for group in system_groups(settings)},
                # The objects of Karpenter that come next are refused before.
                "Autoscaling": settings.autoscaling == "karpenter",
                "TimeoutSeconds": WAIT.to_seconds(),
            },
        )
        self.resource.node.add_dependency(hyperpod)
        acknowledge_provider(self)

    def _function(
        self, construct_id: str, handler: str, role: iam.IRole, log_group: logs.ILogGroup
    ) -> lambda_.Function:
        return lambda_.Function(
            self,
            construct_id,
            description="Waits for nodes of a HyperPod cluster",
            runtime=lambda_.Runtime.PYTHON_3_14,
            architecture=lambda_.Architecture.ARM_64,
            code=lambda_.Code.from_asset(str(CODE), exclude=["__pycache__", "*.pyc"]),
            handler=f"index.{handler}",
            timeout=Duration.minutes(1),
            role=role,
            log_group=log_group,
        )
