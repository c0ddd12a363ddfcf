"""Checks of the quotas for a new VPC, endpoints, and the network interfaces of nodes."""

from collections.abc import Iterator

from config.address_demand import node_interfaces
from config.cluster import Cluster, ExistingVpc, NewVpc
from config.facts.endpoint_services import endpoint_services
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import Quota, judge_quota
from tools.preflight.stacks import is_deployed, missing_nodes

VPC, EC2 = "Amazon Virtual Private Cloud (Amazon VPC)", "Amazon Elastic Compute Cloud (Amazon EC2)"
VPCS = Quota("vpc", VPC, "VPCs per Region", "L-F678F1CE")
INTERNET_GATEWAYS = Quota("vpc", VPC, "Internet gateways per Region", "L-A4707A72")
ADDRESSES = Quota("ec2", EC2, "EC2-VPC Elastic IPs", "L-0263D0A3")
NAT_GATEWAYS = Quota("vpc", VPC, "NAT gateways per Availability Zone", "L-FE5A380F")
GATEWAY_ENDPOINTS = Quota("vpc", VPC, "Gateway VPC endpoints per Region", "L-1B52E74A")
INTERFACE_ENDPOINTS = Quota("vpc", VPC, "Interface VPC endpoints per VPC", "L-29B6F2EB")
NETWORK_INTERFACES = Quota("vpc", VPC, "Network interfaces per Region", "L-DF5E4CA3")


def check_network_quotas(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check a network that is not deployed yet (of an existing VPC only endpoints), and the missing nodes."""
    if not is_deployed(aws, cluster, "network"):
        if isinstance(cluster.network, NewVpc):
            yield from _new_vpc(aws, cluster.network)
        yield from _endpoints(aws, cluster)
    yield _network_interfaces(aws, missing_nodes(aws, cluster))


def _new_vpc(aws: ReadOnlyAws, network: NewVpc) -> Iterator[Finding]:
    vpcs = aws.items("ec2", "describe_vpcs", "Vpcs")
    yield judge_quota(aws, VPCS, used=len(vpcs))
    if network.internet == "nat":
        gateways = aws.items("ec2", "describe_internet_gateways", "InternetGateways")
        yield judge_quota(aws, INTERNET_GATEWAYS, used=len(gateways))
        addresses = aws.call("ec2", "describe_addresses")["Addresses"]
        yield judge_quota(aws, ADDRESSES, used=len(addresses))
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
    subnets = {
        subnet["SubnetId"] for subnet in aws.items("ec2", "describe_subnets", "Subnets", Filters=in_zone)
    }
    used = [
        gateway
        for gateway in aws.items("ec2", "describe_nat_gateways", "NatGateways")
        if gateway["SubnetId"] in subnets and gateway["State"] in ("pending", "available")
    ]
    return judge_quota(aws, NAT_GATEWAYS, used=len(used))


def _network_interfaces(aws: ReadOnlyAws, cluster: Cluster) -> Finding:
    """Check the quota of interfaces: one per network card (32 on a P5), with or without an address."""
    needed = sum(group.num_instances * node_interfaces(group) for group in cluster.instance_groups)
    used = len(aws.items("ec2", "describe_network_interfaces", "NetworkInterfaces"))
    return judge_quota(aws, NETWORK_INTERFACES, used=used, needed=needed)
