"""Checks of the quotas for what the stacks create: networks, interfaces, file systems and databases."""

from collections.abc import Iterator

from config.address_demand import node_interfaces
from config.cluster import Cluster, ExistingVpc, NewVpc
from config.eks_cluster import EksCluster
from config.facts.endpoint_services import endpoint_services
from config.resource_names import stack_names
from config.slurm_cluster import SlurmCluster
from config.storage import EFA_NOT_CONFIGURED
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import Quota, judge_quota
from tools.preflight.stacks import is_deployed, missing_nodes

VPC = "Amazon Virtual Private Cloud (Amazon VPC)"
EC2 = "Amazon Elastic Compute Cloud (Amazon EC2)"
VPCS = Quota("vpc", VPC, "VPCs per Region", "L-F678F1CE")
INTERNET_GATEWAYS = Quota("vpc", VPC, "Internet gateways per Region", "L-A4707A72")
ADDRESSES = Quota("ec2", EC2, "EC2-VPC Elastic IPs", "L-0263D0A3")
NAT_GATEWAYS = Quota("vpc", VPC, "NAT gateways per Availability Zone", "L-FE5A380F")
GATEWAY_ENDPOINTS = Quota("vpc", VPC, "Gateway VPC endpoints per Region", "L-1B52E74A")
INTERFACE_ENDPOINTS = Quota("vpc", VPC, "Interface VPC endpoints per VPC", "L-29B6F2EB")
NETWORK_INTERFACES = Quota("vpc", VPC, "Network interfaces per Region", "L-DF5E4CA3")
KUBERNETES_CLUSTERS = Quota(
    "eks",
    "Amazon Elastic Kubernetes Service (Amazon EKS)",
    "Clusters",
    subject="quota EKS clusters per Region",
)
"""Quota of clusters per region (AWS General Reference, "Amazon EKS endpoints and quotas")."""
RDS = "Amazon Relational Database Service (Amazon RDS)"
DATABASE_QUOTAS = {
    "DBInstances": "DB instances",
    "AllocatedStorage": "Total storage for all DB instances",
    "DBSubnetGroups": "DB subnet groups",
    "DBParameterGroups": "Parameter groups",
}
"""Names in Service Quotas, by the names in RDS's response, which has values and use."""
FSX = "Amazon FSx"
LUSTRE_SYSTEMS = Quota("fsx", FSX, "Lustre Persistent_2 file systems", "L-FD6F2F22")
LUSTRE_CAPACITY = Quota("fsx", FSX, "Lustre Persistent_2 storage capacity", "L-8F1B9C74")
ZFS_SYSTEMS = Quota("fsx", FSX, "OpenZFS file systems", "L-59D0763F")
ZFS_CAPACITY = Quota("fsx", FSX, "OpenZFS SSD storage capacity", "L-88479C21")
ZFS_THROUGHPUT = Quota("fsx", FSX, "OpenZFS throughput capacity", "L-4EDE4065")


def check_network_quotas(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check a network that is not deployed yet (of an existing VPC only endpoints), and the missing nodes.

    The quota of interfaces counts one per network card (32 on a P5), with or without an address.
    """
    if not is_deployed(aws, cluster, "network"):
        if isinstance(cluster.network, NewVpc):
            yield from _new_vpc(aws, cluster.network)
        yield from _endpoints(aws, cluster)
    groups = missing_nodes(aws, cluster).instance_groups
    needed = sum(group.num_instances * node_interfaces(group) for group in groups)
    used = len(aws.items("ec2", "describe_network_interfaces", "NetworkInterfaces"))
    yield judge_quota(aws, NETWORK_INTERFACES, used=used, needed=needed)


def _new_vpc(aws: ReadOnlyAws, network: NewVpc) -> Iterator[Finding]:
    yield judge_quota(aws, VPCS, used=len(aws.items("ec2", "describe_vpcs", "Vpcs")))
    if network.internet == "nat":
        gateways = aws.items("ec2", "describe_internet_gateways", "InternetGateways")
        yield judge_quota(aws, INTERNET_GATEWAYS, used=len(gateways))
        yield judge_quota(
            aws, ADDRESSES, used=len(aws.call("ec2", "describe_addresses")["Addresses"])
        )
        yield _nat_gateways(aws, network.availability_zone_ids[0])


def _endpoints(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check the quotas of gateway endpoints per region and interface endpoints per VPC.

    The latter include Gateway Load Balancer endpoints (AWS PrivateLink guide, "AWS PrivateLink quotas").
    """
    network = cluster.network
    there = aws.items("ec2", "describe_vpc_endpoints", "VpcEndpoints")
    if isinstance(network, NewVpc) or network.s3_gateway_endpoint:
        gateways = sum(endpoint["VpcEndpointType"] == "Gateway" for endpoint in there)
        yield judge_quota(aws, GATEWAY_ENDPOINTS, used=gateways)
    if network.interface_endpoints:
        in_vpc = [
            endpoint
            for endpoint in there
            if isinstance(network, ExistingVpc)
            and endpoint["VpcId"] == network.vpc_id
            and endpoint["VpcEndpointType"] in ("Interface", "GatewayLoadBalancer")
        ]
        needed = len(endpoint_services(cluster))
        yield judge_quota(aws, INTERFACE_ENDPOINTS, used=len(in_vpc), needed=needed)


def _nat_gateways(aws: ReadOnlyAws, zone_id: str) -> Finding:
    in_zone = [{"Name": "availability-zone-id", "Values": [zone_id]}]
    subnets = aws.items("ec2", "describe_subnets", "Subnets", Filters=in_zone)
    subnet_ids = {subnet["SubnetId"] for subnet in subnets}
    used = [
        gateway
        for gateway in aws.items("ec2", "describe_nat_gateways", "NatGateways")
        if gateway["SubnetId"] in subnet_ids and gateway["State"] in ("pending", "available")
    ]
    return judge_quota(aws, NAT_GATEWAYS, used=len(used))


def check_storage_quotas(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    settings = cluster.storage.lustre
    if settings and settings.lacks_efa_client:
        yield Subject("EFA to Lustre").warn(EFA_NOT_CONFIGURED, "set storage.lustre.efa: false")
    own = _tag_of_the_stack(cluster)
    systems = aws.items("fsx", "describe_file_systems", "FileSystems")
    others = [system for system in systems if own not in system.get("Tags", [])]
    lustre = [
        system["StorageCapacity"]
        for system in others
        if system.get("LustreConfiguration", {}).get("DeploymentType") == "PERSISTENT_2"
    ]
    if settings and not settings.existing:
        yield judge_quota(aws, LUSTRE_SYSTEMS, used=len(lustre))
        capacity_gib = settings.capacity_gib
        yield judge_quota(aws, LUSTRE_CAPACITY, used=sum(lustre), needed=capacity_gib, unit="GiB")
    home = cluster.storage.home
    if home is None or home.existing:
        return
    zfs = [system for system in others if system["FileSystemType"] == "OPENZFS"]
    yield judge_quota(aws, ZFS_SYSTEMS, used=len(zfs))
    used_gib = sum(system["StorageCapacity"] for system in zfs)
    yield judge_quota(aws, ZFS_CAPACITY, used=used_gib, needed=home.capacity_gib, unit="GiB")
    used_mbps = sum(system["OpenZFSConfiguration"]["ThroughputCapacity"] for system in zfs)
    yield judge_quota(aws, ZFS_THROUGHPUT, used=used_mbps, needed=home.throughput_mbps, unit="MB/s")


def _tag_of_the_stack(cluster: Cluster) -> dict[str, str]:
    """Return the tag of resources that belong to this cluster's storage stack."""
    return {"Key": "aws:cloudformation:stack-name", "Value": stack_names(cluster).storage}


def check_database_quotas(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    """Check RDS's quotas if the database does not exist yet; it may be added to an existing cluster."""
    database = cluster.accounting_database
    databases = aws.items("rds", "describe_db_instances", "DBInstances") if database else []
    own = _tag_of_the_stack(cluster)
    if (
        not database
        or database.existing
        or any(own in found.get("TagList", []) for found in databases)
    ):
        return
    quotas = {
        quota["AccountQuotaName"]: quota
        for quota in aws.call("rds", "describe_account_attributes")["AccountQuotas"]
    }
    for name, shown in DATABASE_QUOTAS.items():
        quota = quotas.get(name)
        is_storage = name == "AllocatedStorage"
        yield judge_quota(
            aws,
            Quota("rds", RDS, shown),
            needed=database.storage_gib if is_storage else 1,
            used=quota["Used"] if quota else 0,
            unit="GiB" if is_storage else "",
            values={shown: quota["Max"]} if quota else {},
        )


def check_kubernetes_quota(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    if cluster.kubernetes.existing or is_deployed(aws, cluster, "hyperpod"):
        return
    used = len(aws.items("eks", "list_clusters", "clusters"))
    yield judge_quota(aws, KUBERNETES_CLUSTERS, used=used)
