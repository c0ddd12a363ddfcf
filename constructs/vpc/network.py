"""Network of a cluster's nodes and file systems: a new VPC, or subnets of an existing one."""

from collections.abc import Sequence

from aws_cdk import RemovalPolicy, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam

from config.cluster import Cluster, ExistingVpc, NewVpc, address_ranges, control_plane_zones
from config.eks_cluster import EksCluster
from config.facts.endpoint_services import endpoint_services
from config.slurm_cluster import SlurmCluster
from constructs import Construct
from constructs.storage.encryption_key import encryption_key
from constructs.vpc.cluster_vpc import ClusterVpc
from constructs.vpc.flow_log import FlowLog
from constructs.vpc.interface_endpoints import HTTPS_PORT, InterfaceEndpoints

ANY_OWNER = "*"
"""Account in the ARNs of an existing VPC and its subnets. A shared VPC has its owner's account in its ARNs.
Ids are unique, so that no other subnet is allowed."""
DATABASE_PORT = 3306
"""Port of Slurm's accounting database."""


class Network(Construct):
    """VPC, subnets, security group and endpoints of one cluster, new or existing."""

    vpc: ec2.IVpc
    security_group: ec2.ISecurityGroup
    """Security group of every node and file system; the first one if they have several."""
    security_group_ids: list[str]
    """Security groups of every node and file system."""
    database_subnets: list[ec2.ISubnet]
    """Subnets of the accounting database in two zones; empty without a database."""
    control_plane_subnets: list[ec2.ISubnet]
    """Subnets of the EKS control plane in two zones; empty for Slurm."""
    _subnets: dict[str, ec2.ISubnet]
    """Private subnets by zone id, in the file's order."""

    def __init__(self, scope: Construct, construct_id: str, *, cluster: Cluster) -> None:
        super().__init__(scope, construct_id)
        network = cluster.network
        self._is_existing = isinstance(network, ExistingVpc)
        self.ranges = address_ranges(network)
        """Address ranges of the VPC that the cluster uses or that the file names."""
        database = isinstance(cluster, SlurmCluster) and cluster.accounting_database is not None
        zones = control_plane_zones(cluster) if isinstance(cluster, EksCluster) else []
        if isinstance(network, NewVpc):
            vpc_id = self._create(cluster, network, database, zones)
        else:
            vpc_id = self._import(network, database, zones)
        self.vpc = ec2.Vpc.from_vpc_attributes(
            self,
            "Vpc",
            vpc_id=vpc_id,
            vpc_cidr_block=self.ranges[0],
            # One entry per subnet, because the library pairs zones and subnets by position.
            availability_zones=[subnet.availability_zone for subnet in self.private_subnets],
            private_subnet_ids=[subnet.subnet_id for subnet in self.private_subnets],
            private_subnet_route_table_ids=self._route_table_ids(),
        )
        closed = isinstance(network, NewVpc) and network.internet == "none"
        existing = network.security_group_ids if isinstance(network, ExistingVpc) else []
        self.has_own_security_group = not existing
        """Whether the stack creates the security group, and may add rules to it."""
        if existing:
            # The first one stands for all, because each node is a member of all of them.
            self.security_group = ec2.SecurityGroup.from_security_group_id(
                self, "SecurityGroup", existing[0], mutable=False
            )
            self.security_group_ids = list(existing)
        else:
            self.security_group = self._security_group(closed)
            self.security_group_ids = [self.security_group.security_group_id]
        if isinstance(network, NewVpc) or network.s3_gateway_endpoint:
            ec2.CfnVPCEndpoint(
                self,
                "S3Endpoint",
                vpc_id=self.vpc.vpc_id,
                service_name=f"com.amazonaws.{Stack.of(self).region}.s3",
                vpc_endpoint_type="Gateway",
                route_table_ids=list(dict.fromkeys(self._route_table_ids())),
                # Other networks have the service's default policy. With a route to the internet, a policy
                # could not prevent writes, and in a shared VPC it would restrict other clients.
                policy_document=_no_foreign_writes(self, cluster) if closed else None,
            )
        if network.interface_endpoints:
            clients: list[ec2.IPeer] = [self.security_group]
            if isinstance(network, ExistingVpc) or cluster.studio:
                # The endpoints' private names apply in the whole VPC, also for existing machines and for
                # Studio's spaces. The security group of the spaces is created later.
                clients += [ec2.Peer.ipv4(cidr) for cidr in self.ranges]
            services = endpoint_services(cluster)
            # Endpoints bill per zone, and the cluster cannot run without the first zone, in which the file
            # systems are. So an endpoint is in the first zone unless its service is not offered there.
            zone_of = network.endpoint_zones
            InterfaceEndpoints(
                self,
                "InterfaceEndpoints",
                vpc=self.vpc,
                clients=clients,
                services=services,
                subnets={
                    service: self.subnet(zone_of.get(service)) for service in services.values()
                },
            )

    @property
    def owner(self) -> str:
        """Account in ARNs of the VPC and its subnets."""
        return ANY_OWNER if self._is_existing else Stack.of(self).account

    @property
    def security_group_arns(self) -> list[str]:
        """ARNs of the security groups; those of a shared VPC may have its owner's account."""
        stack = Stack.of(self)
        account = stack.account if self.has_own_security_group else ANY_OWNER
        prefix = f"arn:{stack.partition}:ec2:{stack.region}:{account}:security-group"
        return [f"{prefix}/{group_id}" for group_id in self.security_group_ids]

    @property
    def private_subnets(self) -> list[ec2.ISubnet]:
        """Private subnets, one per zone, in the file's order."""
        return list(self._subnets.values())

    def subnet(self, zone_id: str | None) -> ec2.ISubnet:
        """Return the private subnet of one of the network's zones; None is the first zone."""
        return self._subnets[zone_id] if zone_id else next(iter(self._subnets.values()))

    def _route_table_ids(self) -> list[str]:
        return [subnet.route_table.route_table_id for subnet in self.private_subnets]

    def _create(
        self, cluster: Cluster, network: NewVpc, database: bool, zones: Sequence[str]
    ) -> str:
        """Create the VPC with its flow log, and return its id."""
        created = ClusterVpc(
            self,
            "ClusterVpc",
            network=network,
            name=cluster.name,
            database=database,
            control_plane_zone_ids=zones,
        )
        self._subnets = dict(
            zip(network.availability_zone_ids, created.private_subnets, strict=True)
        )
        self.database_subnets = created.database_subnets
        self.control_plane_subnets = created.control_plane_subnets
        key = encryption_key(
            self,
            "FlowLogKey",
            setting=cluster.storage.kms,
            alias=f"{cluster.name}-flow-log",
            removal=RemovalPolicy.DESTROY,
        )
        FlowLog(
            self, "FlowLog", vpc_id=created.vpc_id, key=key, retention_days=network.flow_logs_days
        )
        return created.vpc_id

    def _import(self, network: ExistingVpc, database: bool, zones: Sequence[str]) -> str:
        """Import the subnets of an existing VPC, and return the VPC's id."""
        self._subnets = {
            subnet.availability_zone_id: ec2.Subnet.from_subnet_attributes(
                self,
                f"PrivateSubnet{index}",
                subnet_id=subnet.subnet_id,
                # The library requires a zone name, and only the id is known. No template contains the value.
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
        """Create a group that admits only its own members.

        EFA's health check and an EFA-enabled Lustre file system both require all protocols from and to the
        group itself. The same rules admit Lustre (TCP 988 and 1018-1023), NFS to OpenZFS (TCP and UDP 111,
        2049, 20001-20003), Slurm, MPI and NCCL.

        Nodes of an open network may connect to any address. Nodes of a closed network may connect to each
        other, to the database, and by HTTPS, which the route tables lead only to S3 and the endpoints.
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
        # Redundant in an open network, but the EFA health check requires this rule.
        ec2.CfnSecurityGroupEgress(
            self,
            "SecurityGroupEgressToMembers",
            group_id=group.security_group_id,
            ip_protocol="-1",
            destination_security_group_id=group.security_group_id,
            description="All protocols to members: EFA, Lustre, NFS, Slurm",
        )
        if closed:
            group.add_egress_rule(
                ec2.Peer.any_ipv4(), ec2.Port.tcp(HTTPS_PORT), "S3 and the interface endpoints"
            )
            for subnet in self.database_subnets:
                database = ec2.Peer.ipv4(subnet.ipv4_cidr_block)
                group.add_egress_rule(database, ec2.Port.tcp(DATABASE_PORT), "Accounting database")
        return group


def _no_foreign_writes(scope: Construct, cluster: Cluster) -> iam.PolicyDocument:
    """Return the policy of requests to S3 that leave a closed network.

    Identities of this account may do what their own policies allow. Other identities may only read: ECR's
    layers, package repositories and SageMaker's own files are in buckets of other accounts, are read with
    other credentials or none, and have different names in each region.

    The policy refuses writes with credentials of other accounts, the simplest way to carry data out. It also
    refuses uploads by agents with credentials of their service. HyperPod documents no such uploads: its
    agents log to this account's CloudWatch.

    The functions that install charts on EKS run in the VPC. They report to CloudFormation by an object in its
    bucket, with an address that CloudFormation has signed.
    """
    stack = Stack.of(scope)
    reports: list[iam.PolicyStatement] = []
    if isinstance(cluster, EksCluster):
        # The bucket's name has the region without dashes (CloudFormation user guide, "Setting up VPC
        # endpoints for AWS CloudFormation").
        bucket = f"cloudformation-custom-resource-response-{cluster.region.replace('-', '')}"
        reports.append(
            iam.PolicyStatement(
                sid="ReportToCloudFormation",
                principals=[iam.AnyPrincipal()],
                actions=["s3:PutObject"],
                resources=[f"arn:{stack.partition}:s3:::{bucket}/*"],
            )
        )
    return iam.PolicyDocument(
        statements=[
            *reports,
            iam.PolicyStatement(
                sid="OwnIdentities",
                principals=[iam.AnyPrincipal()],
                actions=["s3:*"],
                resources=["*"],
                conditions={"StringEquals": {"aws:PrincipalAccount": stack.account}},
            ),
            iam.PolicyStatement(
                sid="ReadForeign",
                principals=[iam.AnyPrincipal()],
                actions=[
                    "s3:GetBucketLocation",
                    "s3:GetObject",
                    "s3:GetObjectVersion",
                    "s3:ListBucket",
                ],
                resources=["*"],
            ),
        ]
    )
