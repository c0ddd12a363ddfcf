"""Network of a cluster's nodes and file systems: a new VPC, or subnets of an existing one."""

from collections.abc import Mapping, Sequence

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam

from config.cluster import Cluster, ExistingVpc, NewVpc, control_plane_zones
from config.eks_cluster import EksCluster
from config.facts.endpoint_services import endpoint_services, prefix_and_name
from config.slurm_cluster import SlurmCluster
from constructs import Construct
from constructs.storage.encryption_key import encryption_key
from constructs.vpc.cluster_vpc import ClusterVpc, record_connections

DATABASE_PORT = 3306
"""Port of Slurm's accounting database."""


class Network(Construct):
    """VPC, subnets, security group and endpoints of one cluster, new or existing."""

    vpc: ec2.IVpc
    security_group: ec2.ISecurityGroup
    """Security group of every node and file system."""
    database_subnets: list[ec2.ISubnet]
    """In two zones; empty without an accounting database."""
    control_plane_subnets: list[ec2.ISubnet]
    """EKS's, in two zones; empty for Slurm."""
    _subnets: dict[str, ec2.ISubnet]
    """Private ones by the id of their zone, in the file's order."""

    def __init__(self, scope: Construct, construct_id: str, *, cluster: Cluster) -> None:
        super().__init__(scope, construct_id)
        network = cluster.network
        database = isinstance(cluster, SlurmCluster) and cluster.accounting_database is not None
        zones = control_plane_zones(cluster) if isinstance(cluster, EksCluster) else []
        vpc_id = (
            self._make(cluster, network, database, zones)
            if isinstance(network, NewVpc)
            else self._import(network, database, zones)
        )
        self.vpc = ec2.Vpc.from_vpc_attributes(
            self,
            "Vpc",
            vpc_id=vpc_id,
            vpc_cidr_block=network.cidr,
            # One entry per subnet: the library pairs the two lists by position.
            availability_zones=[subnet.availability_zone for subnet in self.private_subnets],
            private_subnet_ids=[subnet.subnet_id for subnet in self.private_subnets],
            private_subnet_route_table_ids=self._route_table_ids(),
        )
        closed = isinstance(network, NewVpc) and network.internet == "none"
        self.security_group = self._security_group(closed)
        if isinstance(network, NewVpc) or network.s3_gateway_endpoint:
            ec2.CfnVPCEndpoint(
                self,
                "S3Endpoint",
                vpc_id=self.vpc.vpc_id,
                service_name=f"com.amazonaws.{Stack.of(self).region}.s3",
                vpc_endpoint_type="Gateway",
                route_table_ids=list(dict.fromkeys(self._route_table_ids())),
                # Otherwise the service's default, as for the interface endpoints. In a network with a route
                # to the internet a policy keeps nothing in, and in a shared VPC it would restrict others.
                policy_document=_no_foreign_writes(self) if closed else None,
            )
        if network.interface_endpoints:
            # Their private names hold in the whole VPC, also for existing machines and for Studio's spaces,
            # which are in a group that is created later.
            everyone = isinstance(network, ExistingVpc) or cluster.studio
            clients = [self.security_group, *([ec2.Peer.ipv4(network.cidr)] if everyone else [])]
            self._interface_endpoints(clients, endpoint_services(cluster), network.endpoint_zones)

    @property
    def private_subnets(self) -> list[ec2.ISubnet]:
        """One per zone, in the file's order."""
        return list(self._subnets.values())

    def subnet(self, zone_id: str | None) -> ec2.ISubnet:
        """The private subnet of one of the network's zones; None is the first zone."""
        return self._subnets[zone_id] if zone_id else next(iter(self._subnets.values()))

    def _route_table_ids(self) -> list[str]:
        return [subnet.route_table.route_table_id for subnet in self.private_subnets]

    def _make(self, cluster: Cluster, network: NewVpc, database: bool, zones: Sequence[str]) -> str:
        """Create the VPC with its flow log, and return its id."""
        made = ClusterVpc(
            self, network=network, name=cluster.name, database=database, control_plane_zone_ids=zones
        )
        self._subnets = dict(zip(network.availability_zone_ids, made.private_subnets, strict=True))
        self.database_subnets = made.database_subnets
        self.control_plane_subnets = made.control_plane_subnets
        key = encryption_key(
            self,
            "FlowLogKey",
            setting=cluster.storage.kms,
            alias=f"{cluster.name}-flow-log",
            removal=RemovalPolicy.DESTROY,
        )
        record_connections(self, made.vpc_id, key, network.flow_logs_days)
        return made.vpc_id

    def _import(self, network: ExistingVpc, database: bool, zones: Sequence[str]) -> str:
        self._subnets = {
            subnet.availability_zone_id: ec2.Subnet.from_subnet_attributes(
                self,
                f"PrivateSubnet{index}",
                subnet_id=subnet.subnet_id,
                # The library requires a name, and only the id is known. No template contains it.
                availability_zone=subnet.availability_zone_id,
                route_table_id=subnet.route_table_id,
                ipv4_cidr_block=subnet.cidr,
            )
            for index, subnet in enumerate(network.private_subnets)
        }
        self.database_subnets = self.private_subnets[:2] if database else []
        self.control_plane_subnets = [self._subnets[zone] for zone in zones]
        return network.vpc_id

    def _security_group(self, closed: bool) -> ec2.SecurityGroup:
        """Everything between members, nothing else inwards.

        EFA's health check and an EFA-enabled Lustre file system both want all protocols from and to the group
        itself. The same rules carry Lustre (TCP 988 and 1018-1023), NFS to OpenZFS (TCP and UDP 111, 2049,
        20001-20003), Slurm, MPI and NCCL.

        Outwards, nodes of an open network may go anywhere. In a closed one they have three ways: HTTPS, which
        the route tables take to S3 and the endpoints only, the database, and each other.
        """
        group = ec2.SecurityGroup(
            self,
            "SecurityGroup",
            vpc=self.vpc,
            description="Nodes and file systems of the cluster: all traffic between members",
            allow_all_outbound=not closed,
        )
        group.add_ingress_rule(
            group, ec2.Port.all_traffic(), "All protocols from members: EFA, Lustre, NFS, Slurm"
        )
        # Beside "anywhere" this looks redundant, but the EFA health check looks for the rule itself.
        ec2.CfnSecurityGroupEgress(
            self,
            "SecurityGroupEgressToMembers",
            group_id=group.security_group_id,
            ip_protocol="-1",
            destination_security_group_id=group.security_group_id,
            description="All protocols to members: EFA, Lustre, NFS, Slurm",
        )
        if closed:
            group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "S3 and the interface endpoints")
            for subnet in self.database_subnets:
                database = ec2.Peer.ipv4(subnet.ipv4_cidr_block)
                group.add_egress_rule(database, ec2.Port.tcp(DATABASE_PORT), "Accounting database")
        return group

    def _interface_endpoints(
        self, clients: Sequence[ec2.IPeer], services: Mapping[str, str], zones: Mapping[str, str]
    ) -> None:
        """Create one endpoint per service, open to ``clients`` only.

        Endpoints bill per zone, and without the first zone, the file systems', there is no cluster to serve.
        So they are in that zone unless ``zones`` names another. Their policies are the services' default,
        because agents on the nodes call with credentials of other accounts. A node's role limits its calls.

        Args:
            clients: peers that may connect.
            services: names of services by construct id.
            zones: zone ids by names of services that the first zone lacks.
        """
        made = Construct(self, "InterfaceEndpoints")
        group = ec2.SecurityGroup(
            made,
            "SecurityGroup",
            vpc=self.vpc,
            description="Interface endpoints of a HyperPod cluster",
            allow_all_outbound=False,
        )
        for client in clients:
            group.add_ingress_rule(client, ec2.Port.tcp(443), "HTTPS")
        for service_id, service in services.items():
            prefix, name = prefix_and_name(service)
            ec2.InterfaceVpcEndpoint(
                made,
                service_id,
                vpc=self.vpc,
                service=ec2.InterfaceVpcEndpointAwsService(name, prefix),
                subnets=ec2.SubnetSelection(subnets=[self.subnet(zones.get(service))]),
                security_groups=[group],
                open=False,
                private_dns_enabled=True,
            )


def _no_foreign_writes(scope: Construct) -> iam.PolicyDocument:
    """Return the policy of requests that leave a closed network.

    This account's identities may do what their own policies allow. Everyone else may only read: ECR's layers,
    package repositories and SageMaker's own files lie in buckets of other accounts, are fetched with other
    credentials or none, and their names differ by region. What does not pass is a write with foreign
    credentials, the simplest way to carry data out; uploads that an agent would make with its service's
    credentials are refused with it. HyperPod documents none: its agents log to this account's CloudWatch.
    """
    return iam.PolicyDocument(
        statements=[
            iam.PolicyStatement(
                sid="OwnIdentities",
                principals=[iam.AnyPrincipal()],
                actions=["s3:*"],
                resources=["*"],
                conditions={"StringEquals": {"aws:PrincipalAccount": Stack.of(scope).account}},
            ),
            iam.PolicyStatement(
                sid="ReadForeign",
                principals=[iam.AnyPrincipal()],
                actions=["s3:GetBucketLocation", "s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket"],
                resources=["*"],
            ),
        ]
    )
