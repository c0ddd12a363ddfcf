"""Interface endpoints of AWS services."""

from collections.abc import Mapping, Sequence

from aws_cdk import aws_ec2 as ec2

from config.facts.endpoint_services import prefix_and_name
from constructs import Construct

HTTPS_PORT = 443


class InterfaceEndpoints(Construct):
    """One endpoint per service, open only to the clients.

    The endpoints' policies are the services' default, because agents on the nodes call with credentials of
    other accounts. A node's role limits its own calls.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        vpc: ec2.IVpc,
        clients: Sequence[ec2.IPeer],
        services: Mapping[str, str],
        subnets: Mapping[str, ec2.ISubnet],
    ) -> None:
        """Create the endpoints and their security group.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            vpc: VPC of the endpoints.
            clients: peers that may connect.
            services: names of services by construct id.
            subnets: subnet of each service's endpoint.
        """
        super().__init__(scope, construct_id)
        group = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=vpc,
            description="Interface endpoints of a HyperPod cluster",
            allow_all_outbound=False,
        )
        for client in clients:
            group.add_ingress_rule(client, ec2.Port.tcp(HTTPS_PORT), "HTTPS")
        for service_id, service in services.items():
            prefix, name = prefix_and_name(service)
            ec2.InterfaceVpcEndpoint(
                self,
                service_id,
                vpc=vpc,
                service=ec2.InterfaceVpcEndpointAwsService(name, prefix),
                subnets=ec2.SubnetSelection(subnets=[subnets[service]]),
                security_groups=[group],
                open=False,
                private_dns_enabled=True,
            )
