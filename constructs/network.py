"""Where a cluster's nodes and file systems live: a VPC of its own, or places in one that is there."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ec2 as ec2

from config.cluster import Cluster, ExistingVpc, NewVpc
from config.eks_cluster import EksCluster
from config.endpoint_services import endpoint_services
from config.slurm_cluster import SlurmCluster
from config.zones import control_plane_zones
from constructs import Construct
from constructs.cluster_security_group import cluster_security_group
from constructs.cluster_vpc import ClusterVpc
from constructs.encryption_key import encryption_key
from constructs.flow_log import FlowLog
from constructs.interface_endpoints import InterfaceEndpoints
from constructs.s3_endpoint import s3_gateway_endpoint


class Network(Construct):
    """VPC, subnets, security group and endpoints of one cluster, new or existing."""

    vpc: ec2.IVpc
    security_group: ec2.ISecurityGroup
    """Of every node and file system."""
    database_subnets: list[ec2.ISubnet]
    """In two zones; empty without an accounting database."""
    control_plane_subnets: list[ec2.ISubnet]
    """EKS's, in two zones; empty for Slurm."""
    _subnets: dict[str, ec2.ISubnet]
    """Private ones by the id of their zone, in the file's order."""

    def __init__(self, scope: Construct, construct_id: str, *, cluster: Cluster) -> None:
        super().__init__(scope, construct_id)
        network = cluster.network
        if isinstance(network, NewVpc):
            self._make(cluster, network)
        else:
            self._import(cluster, network)
        closed = isinstance(network, NewVpc) and network.internet == "none"
        self.security_group = cluster_security_group(
            self,
            "SecurityGroup",
            vpc=self.vpc,
            closed=closed,
            database_cidrs=[subnet.ipv4_cidr_block for subnet in self.database_subnets],
        )
        if isinstance(network, NewVpc) or network.s3_gateway_endpoint:
            s3_gateway_endpoint(
                self,
                "S3Endpoint",
                vpc_id=self.vpc.vpc_id,
                route_table_ids=[subnet.route_table.route_table_id for subnet in self.private_subnets],
                closed=closed,
            )
        if network.interface_endpoints:
            InterfaceEndpoints(
                self,
                "InterfaceEndpoints",
                vpc=self.vpc,
                subnet=self.subnet(None),
                clients=[
                    self.security_group,
                    # Their private names are the whole VPC's from then on, also for what is there already.
                    # And so are spaces of Studio, which are in a group that is made later.
                    *(
                        [ec2.Peer.ipv4(network.cidr)]
                        if isinstance(network, ExistingVpc) or cluster.studio
                        else []
                    ),
                ],
                services=endpoint_services(cluster),
            )

    @property
    def private_subnets(self) -> list[ec2.ISubnet]:
        """One per zone, in the file's order."""
        return list(self._subnets.values())

    def subnet(self, zone_id: str | None) -> ec2.ISubnet:
        """The private subnet of one of the network's zones; None is the first zone."""
        return self._subnets[zone_id] if zone_id else next(iter(self._subnets.values()))

    def _make(self, cluster: Cluster, network: NewVpc) -> None:
        made = ClusterVpc(
            self,
            "ClusterVpc",
            network=network,
            name=cluster.name,
            database=_has_database(cluster),
            control_plane_zone_ids=_control_plane_zones(cluster),
        )
        self._subnets = dict(zip(network.availability_zone_ids, made.private_subnets, strict=True))
        self.database_subnets = made.database_subnets
        self.control_plane_subnets = made.control_plane_subnets
        self.vpc = _imported_vpc(self, made.vpc_id, network.cidr, made.private_subnets)
        key = encryption_key(
            self,
            "FlowLogKey",
            setting=cluster.storage.kms,
            alias=f"{cluster.name}-flow-log",
            removal=RemovalPolicy.DESTROY,
        )
        FlowLog(self, "FlowLog", vpc_id=made.vpc_id, key=key, retention_days=network.flow_logs_days)

    def _import(self, cluster: Cluster, network: ExistingVpc) -> None:
        self._subnets = {
            subnet.availability_zone_id: ec2.Subnet.from_subnet_attributes(
                self,
                f"PrivateSubnet{index}",
                subnet_id=subnet.subnet_id,
                # The library wants a name; only the id is known. No template of ours contains it.
                availability_zone=subnet.availability_zone_id,
                route_table_id=subnet.route_table_id,
                ipv4_cidr_block=subnet.cidr,
            )
            for index, subnet in enumerate(network.private_subnets)
        }
        self.database_subnets = self.private_subnets[:2] if _has_database(cluster) else []
        self.control_plane_subnets = [self._subnets[zone] for zone in _control_plane_zones(cluster)]
        self.vpc = _imported_vpc(self, network.vpc_id, network.cidr, self.private_subnets)


def _has_database(cluster: Cluster) -> bool:
    return isinstance(cluster, SlurmCluster) and cluster.accounting_database is not None


def _control_plane_zones(cluster: Cluster) -> list[str]:
    return control_plane_zones(cluster) if isinstance(cluster, EksCluster) else []


def _imported_vpc(scope: Construct, vpc_id: str, cidr: str, subnets: list[ec2.ISubnet]) -> ec2.IVpc:
    return ec2.Vpc.from_vpc_attributes(
        scope,
        "Vpc",
        vpc_id=vpc_id,
        vpc_cidr_block=cidr,
        # One entry per subnet: the library pairs the two lists by position.
        availability_zones=[subnet.availability_zone for subnet in subnets],
        private_subnet_ids=[subnet.subnet_id for subnet in subnets],
        private_subnet_route_table_ids=[subnet.route_table.route_table_id for subnet in subnets],
    )
