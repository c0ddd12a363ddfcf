"""A VPC for one cluster: a large private subnet per zone, at most one way out, and its flow log."""

from collections.abc import Sequence
from ipaddress import IPv4Network
from itertools import islice

from aws_cdk import Stack, Tags
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms

from config.cluster import NewVpc
from config.rules.network import NUM_SMALL_SUBNETS, SMALL_PREFIX
from constructs import Construct
from constructs.storage.log_group import log_group


class ClusterVpc(Construct):
    """Subnets, routes and, unless the network is closed, a NAT gateway.

    Level 1 constructs, because the library's own VPC places subnets by zone name, and a name means another
    zone in another account. Zones are given by id.

    The VPC's default security group stays as AWS makes it. It admits its own members only and nothing here
    joins it; emptying it would take a function that may change security groups.
    """

    vpc_id: str
    private_subnets: list[ec2.ISubnet]
    """Subnets in the order of the file's zones, one per zone."""
    database_subnets: list[ec2.ISubnet]
    """Subnets of the first two zones, without a route out; empty by default."""
    control_plane_subnets: list[ec2.ISubnet]
    """Subnets of the EKS control plane, with the private subnets' routes."""

    def __init__(
        self,
        scope: Construct,
        *,
        network: NewVpc,
        name: str,
        database: bool,
        control_plane_zone_ids: Sequence[str],
    ) -> None:
        super().__init__(scope, "ClusterVpc")
        self._name = name
        private, (nat, *small) = address_plan(network)
        vpc = ec2.CfnVPC(
            self, "Vpc", cidr_block=network.cidr, enable_dns_hostnames=True, enable_dns_support=True
        )
        Tags.of(vpc).add("Name", name)
        self.vpc_id = vpc.ref

        zones = network.availability_zone_ids
        private_routes = self._route_table("PrivateRouteTable", "private")
        self.private_subnets = [
            self._subnet(f"PrivateSubnet{index}", f"private-{zone}", zone, cidr, private_routes)
            for index, (zone, cidr) in enumerate(zip(zones, private, strict=True))
        ]
        self.database_subnets = []
        if database:
            routes = self._route_table("DatabaseRouteTable", "database")
            self.database_subnets = [
                self._subnet(f"DatabaseSubnet{index}", f"database-{zone}", zone, cidr, routes)
                # A file with a database and one zone is refused by the rules of the configuration.
                for index, (zone, cidr) in enumerate(zip(zones, small, strict=False))
            ]
        # The functions that install charts stand there too, and fetch and report over the internet.
        self.control_plane_subnets = [
            self._subnet(f"ControlPlaneSubnet{index}", f"control-plane-{zone}", zone, cidr, private_routes)
            for index, (zone, cidr) in enumerate(zip(control_plane_zone_ids, small, strict=False))
        ]
        if network.internet == "nat":
            self._nat(zones[0], nat, private_routes)

    def _subnet(
        self, construct_id: str, suffix: str, zone_id: str, cidr: IPv4Network, routes: ec2.CfnRouteTable
    ) -> ec2.ISubnet:
        subnet = ec2.CfnSubnet(
            self,
            construct_id,
            vpc_id=self.vpc_id,
            availability_zone_id=zone_id,
            cidr_block=str(cidr),
            map_public_ip_on_launch=False,
        )
        Tags.of(subnet).add("Name", f"{self._name}-{suffix}")
        ec2.CfnSubnetRouteTableAssociation(
            self, f"{construct_id}Routes", subnet_id=subnet.ref, route_table_id=routes.ref
        )
        return ec2.Subnet.from_subnet_attributes(
            self,
            f"{construct_id}Imported",
            subnet_id=subnet.ref,
            availability_zone=subnet.attr_availability_zone,
            route_table_id=routes.ref,
            ipv4_cidr_block=str(cidr),
        )

    def _route_table(self, construct_id: str, suffix: str) -> ec2.CfnRouteTable:
        routes = ec2.CfnRouteTable(self, construct_id, vpc_id=self.vpc_id)
        Tags.of(routes).add("Name", f"{self._name}-{suffix}")
        return routes

    def _nat(self, zone_id: str, cidr: IPv4Network, private_routes: ec2.CfnRouteTable) -> None:
        """One gateway, in the zone of the file systems: a second would outlive nothing that matters."""
        gateway = ec2.CfnInternetGateway(self, "InternetGateway")
        Tags.of(gateway).add("Name", self._name)
        attachment = ec2.CfnVPCGatewayAttachment(
            self, "InternetGatewayAttachment", vpc_id=self.vpc_id, internet_gateway_id=gateway.ref
        )
        routes = self._route_table("PublicRouteTable", "public")
        subnet = self._subnet("PublicSubnet", f"public-{zone_id}", zone_id, cidr, routes)
        public_route = ec2.CfnRoute(
            self,
            "PublicRoute",
            route_table_id=routes.ref,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway.ref,
        )
        address = ec2.CfnEIP(self, "NatAddress", domain="vpc")
        Tags.of(address).add("Name", f"{self._name}-nat")
        # Neither a route to the gateway nor a public address is valid before the gateway is attached, and
        # CloudFormation cannot see that from their properties.
        public_route.add_resource_dependency(attachment)
        address.add_resource_dependency(attachment)
        nat = ec2.CfnNatGateway(
            self, "NatGateway", subnet_id=subnet.subnet_id, allocation_id=address.attr_allocation_id
        )
        Tags.of(nat).add("Name", self._name)
        nat.add_resource_dependency(public_route)
        ec2.CfnRoute(
            self,
            "PrivateRoute",
            route_table_id=private_routes.ref,
            destination_cidr_block="0.0.0.0/0",
            nat_gateway_id=nat.ref,
        )


def address_plan(network: NewVpc) -> tuple[list[IPv4Network], list[IPv4Network]]:
    """Divide ``network.cidr`` into large private ranges from below, and small ones from above.

    The private ranges are one per zone, in the file's order. The small ones are NAT's, then two of Slurm's
    database or of EKS's control plane. Each depends on its own position only, so a zone or a database that
    is added later moves none. That all fits is a rule of the cluster file.
    """
    vpc = IPv4Network(network.cidr)
    num_zones, prefix = len(network.availability_zone_ids), network.private_prefix_length
    needed = num_zones * 2 ** (32 - prefix) + NUM_SMALL_SUBNETS * 2 ** (32 - SMALL_PREFIX)
    assert needed <= vpc.num_addresses
    small = list(vpc.subnets(new_prefix=SMALL_PREFIX))[-NUM_SMALL_SUBNETS:]
    return list(islice(vpc.subnets(new_prefix=prefix), num_zones)), small[::-1]


def record_connections(scope: Construct, vpc_id: str, key: kms.IKey | None, retention_days: int) -> None:
    """Record the connections that a VPC accepts or rejects: kept ``retention_days``, gone with the stack."""
    parent = Construct(scope, "FlowLog")
    stack = Stack.of(parent)
    group = log_group(parent, "LogGroup", key=key, retention_days=retention_days)
    role = iam.Role(
        parent,
        "Role",
        assumed_by=iam.ServicePrincipal(
            "vpc-flow-logs.amazonaws.com",
            # No other account's flow log may pass this role to the service.
            conditions={
                "StringEquals": {"aws:SourceAccount": stack.account},
                "ArnLike": {
                    "aws:SourceArn": (
                        f"arn:{stack.partition}:ec2:{stack.region}:{stack.account}:vpc-flow-log/*"
                    )
                },
            },
        ),
    )
    policy = iam.Policy(
        parent,
        "Policy",
        roles=[role],
        statements=[
            iam.PolicyStatement(
                actions=["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
                # The group's ARN as CloudFormation returns it ends with ":*": the group's streams.
                resources=[group.attr_arn],
            )
        ],
    )
    flow_log = ec2.CfnFlowLog(
        parent,
        "FlowLog",
        resource_type="VPC",
        resource_id=vpc_id,
        traffic_type="ALL",
        log_destination_type="cloud-watch-logs",
        log_destination=group.attr_arn,
        deliver_logs_permission_arn=role.role_arn,
    )
    flow_log.node.add_dependency(policy)
