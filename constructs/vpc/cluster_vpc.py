"""New VPC of one cluster: a large private subnet per zone, and at most one NAT gateway."""

from collections.abc import Sequence
from ipaddress import IPv4Network

from aws_cdk import Tags
from aws_cdk import aws_ec2 as ec2

from config.address_plan import address_plan
from config.cluster import NewVpc
from constructs import Construct

ANYWHERE = "0.0.0.0/0"


class ClusterVpc(Construct):
    """Subnets, routes and, unless the network is closed, a NAT gateway.

    The constructs are of level 1, because the library's own VPC places subnets by zone name, which means a
    different zone in each account. Here zones are given by id.

    The VPC's default security group stays as AWS creates it. It admits only its own members, and no resource
    joins it. Emptying it would require a function with permission to change security groups.
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
        construct_id: str,
        *,
        network: NewVpc,
        name: str,
        database: bool,
        control_plane_zone_ids: Sequence[str],
    ) -> None:
        """Create the VPC.

        Args:
            scope: parent construct.
            construct_id: id within the parent.
            network: section of the cluster file.
            name: name tag of the VPC, and prefix of its parts' name tags.
            database: whether to create subnets for Slurm's database.
            control_plane_zone_ids: zones of the EKS control plane; empty for Slurm.
        """
        super().__init__(scope, construct_id)
        self._name = name
        plan = address_plan(network)
        vpc = ec2.CfnVPC(
            self, "Vpc", cidr_block=network.cidr, enable_dns_hostnames=True, enable_dns_support=True
        )
        Tags.of(vpc).add("Name", name)
        self.vpc_id = vpc.ref

        zones = network.availability_zone_ids
        private_routes = self._route_table("PrivateRouteTable", "private")
        self.private_subnets = [
            self._subnet(f"PrivateSubnet{index}", f"private-{zone}", zone, cidr, private_routes)
            for index, (zone, cidr) in enumerate(zip(zones, plan.private, strict=True))
        ]
        self.database_subnets = []
        if database:
            routes = self._route_table("DatabaseRouteTable", "database")
            self.database_subnets = [
                self._subnet(f"DatabaseSubnet{index}", f"database-{zone}", zone, cidr, routes)
                # The rules of the cluster file refuse a database with only one zone.
                for index, (zone, cidr) in enumerate(zip(zones, plan.small, strict=False))
            ]
        # The functions that install charts also run in these subnets, and need the private subnets' routes.
        self.control_plane_subnets = [
            self._subnet(
                f"ControlPlaneSubnet{index}", f"control-plane-{zone}", zone, cidr, private_routes
            )
            for index, (zone, cidr) in enumerate(
                zip(control_plane_zone_ids, plan.small, strict=False)
            )
        ]
        if network.internet == "nat":
            self._nat(zones[0], plan.nat, private_routes)

    def _subnet(
        self,
        construct_id: str,
        suffix: str,
        zone_id: str,
        cidr: IPv4Network,
        routes: ec2.CfnRouteTable,
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
        """Create one gateway in the zone of the file systems, without which the cluster cannot run anyway."""
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
            destination_cidr_block=ANYWHERE,
            gateway_id=gateway.ref,
        )
        address = ec2.CfnEIP(self, "NatAddress", domain="vpc")
        Tags.of(address).add("Name", f"{self._name}-nat")
        # A route to the gateway and a public address are valid only after the gateway is attached, which
        # CloudFormation cannot infer from their properties.
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
            destination_cidr_block=ANYWHERE,
            nat_gateway_id=nat.ref,
        )
