"""Private addresses, inside the VPC, of the AWS services that nodes call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import aws_ec2 as ec2

from config.endpoint_services import prefix_and_name
from constructs import Construct


class InterfaceEndpoints(Construct):
    """One endpoint per service, open to ``clients`` only; ``services`` by construct id.

    They stand in one zone, the file systems': endpoints bill per zone, and without that zone there is no
    cluster to serve. Their policies are the services' default, since agents on the nodes call with
    credentials of other accounts; what a node may do is in its role.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        vpc: ec2.IVpc,
        subnet: ec2.ISubnet,
        clients: Sequence[ec2.IPeer],
        services: Mapping[str, str],
    ) -> None:
        super().__init__(scope, construct_id)
        group = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=vpc,
            description="Interface endpoints of a HyperPod cluster",
            allow_all_outbound=False,
        )
        for client in clients:
            group.add_ingress_rule(client, ec2.Port.tcp(443), "HTTPS")
        for service_id, service in services.items():
            prefix, name = prefix_and_name(service)
            ec2.InterfaceVpcEndpoint(
                self,
                service_id,
                vpc=vpc,
                service=ec2.InterfaceVpcEndpointAwsService(name, prefix),
                subnets=ec2.SubnetSelection(subnets=[subnet]),
                security_groups=[group],
                open=False,
                private_dns_enabled=True,
            )
