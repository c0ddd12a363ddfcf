"""Network of a cluster, which outlives all other stacks."""

from typing import Any

from aws_cdk import CfnOutput, CfnResource, CfnWaitConditionHandle, Stack

from config.cluster import Cluster
from constructs import Construct
from constructs.vpc.network import Network


class NetworkStack(Stack):
    """Network of a cluster."""

    def __init__(
        self, scope: Construct, construct_id: str, *, cluster: Cluster, **stack_arguments: Any
    ) -> None:
        super().__init__(scope, construct_id, **stack_arguments)
        self.network = Network(self, "Network", cluster=cluster)
        if not any(isinstance(child, CfnResource) for child in self.node.find_all()):
            # CloudFormation refuses a template without resources. This one is free and does nothing.
            CfnWaitConditionHandle(self, "NothingToCreate")
        CfnOutput(self, "VpcId", value=self.network.vpc.vpc_id)
        CfnOutput(self, "SubnetId", value=self.network.subnet(None).subnet_id)
        CfnOutput(self, "SecurityGroupId", value=",".join(self.network.security_group_ids))
