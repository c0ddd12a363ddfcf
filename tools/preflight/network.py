"""Checks of the network: zones of endpoints, and an existing VPC with its subnets' access to AWS services."""

from collections.abc import Iterator
from typing import Any

from config.cluster import Cluster, ExistingSubnet, ExistingVpc, zone_ids
from config.eks_cluster import EksCluster
from config.facts.endpoint_services import endpoint_services, whole_name
from config.slurm_cluster import SlurmCluster
from manifests.public_images import takes_copies
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed, missing_addresses

ENDPOINTS = Subject("interface endpoints")


def check_existing_vpc(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    network = cluster.network
    if not isinstance(network, ExistingVpc):
        return
    subject = Subject(f"VPC {network.vpc_id}")
    found = aws.find("ec2", "describe_vpcs", VpcIds=[network.vpc_id])
    if found is None:
        action = "set network.vpc_id to a VPC of this account and region"
        yield subject.fail(f"does not exist in {cluster.region}", action)
        return
    yield from _check_ranges(subject, network, found["Vpcs"][0])
    owner = _foreign_owner(aws, network)
    if owner:
        yield subject.ok(f"account {owner} shares it")
        yield from _check_switches_of_shared(subject, network, owner)
    for attribute, option in (
        ("enableDnsSupport", "enable-dns-support"),
        ("enableDnsHostnames", "enable-dns-hostnames"),
    ):
        answer = aws.call(
            "ec2", "describe_vpc_attribute", VpcId=network.vpc_id, Attribute=attribute
        )
        if not answer[attribute[0].upper() + attribute[1:]]["Value"]:
            yield subject.fail(
                f"{attribute} is off; FSx and the interface endpoints need DNS names",
                f"`aws ec2 modify-vpc-attribute --vpc-id {network.vpc_id} --{option}`",
            )
    for subnet in network.private_subnets:
        yield from _check_subnet(aws, cluster, network, subnet)


def _check_ranges(
    subject: Subject, network: ExistingVpc, found: dict[str, Any]
) -> Iterator[Finding]:
    """Compare the ranges of the file with those of the VPC."""
    cidrs = [block["CidrBlock"] for block in found.get("CidrBlockAssociationSet", [])]
    named = [network.cidr, *network.other_cidrs]
    wrong = [cidr for cidr in named if cidr not in cidrs]
    if wrong:
        yield subject.fail(
            f"its ranges are {', '.join(cidrs)}",
            f"set network.cidr and other_cidrs (now {', '.join(named)}) to these",
        )
        return
    yield subject.ok(f"has {', '.join(named)}")
    # Private names of endpoints apply in the whole VPC, also to machines that cannot reach the endpoints.
    outside = [cidr for cidr in cidrs if cidr not in named]
    if network.interface_endpoints and outside:
        yield subject.warn(
            f"machines in {', '.join(outside)} cannot reach the endpoints, whose names they resolve",
            f"add them to network.other_cidrs: [{', '.join(outside)}]",
        )


def _foreign_owner(aws: ReadOnlyAws, network: ExistingVpc) -> str | None:
    """Return the account that shares the subnets with this one, or None if they are the account's own."""
    for subnet in network.private_subnets:
        answer = aws.find("ec2", "describe_subnets", SubnetIds=[subnet.subnet_id])
        if answer is not None:
            owner = str(answer["Subnets"][0].get("OwnerId", aws.account))
            if owner != aws.account:
                return owner
    return None


def _subnets_in_vpc(aws: ReadOnlyAws, network: ExistingVpc) -> Iterator[ExistingSubnet]:
    """Yield the file's subnets that are in its VPC; ``check_existing_vpc`` reports the others.

    Another subnet would seem to use the main route table of this VPC, or none.
    """
    for subnet in network.private_subnets:
        answer = aws.find("ec2", "describe_subnets", SubnetIds=[subnet.subnet_id])
        if answer is not None and answer["Subnets"][0]["VpcId"] == network.vpc_id:
            yield subnet


def _check_switches_of_shared(
    subject: Subject, network: ExistingVpc, owner: str
) -> Iterator[Finding]:
    """Refuse endpoints, which EC2 creates in a shared VPC only for its owner."""
    for switch in ("s3_gateway_endpoint", "interface_endpoints"):
        if getattr(network, switch):
            yield subject.fail(
                f"network.{switch} is true, and AWS refuses endpoints in a shared VPC (This operation does "
                "not support shared VPCs)",
                f"set it to false, and ask account {owner} for the endpoints that the VPC lacks",
            )


def _check_subnet(
    aws: ReadOnlyAws, cluster: Cluster, network: ExistingVpc, subnet: ExistingSubnet
) -> Iterator[Finding]:
    subject = Subject(f"subnet {subnet.subnet_id}")
    answer = aws.find("ec2", "describe_subnets", SubnetIds=[subnet.subnet_id])
    if answer is None:
        action = "set network.private_subnets to subnets of the VPC"
        yield subject.fail(f"does not exist in {cluster.region}", action)
        return
    found = answer["Subnets"][0]
    if found["VpcId"] != network.vpc_id:
        yield subject.fail(
            f"is in {found['VpcId']}, and network.vpc_id is {network.vpc_id}",
            f"name a subnet of {network.vpc_id}; or set vpc_id to {found['VpcId']}, if all subnets are there",
        )
        return
    for field, key, in_file in (
        ("availability_zone_id", "AvailabilityZoneId", subnet.availability_zone_id),
        ("cidr", "CidrBlock", subnet.cidr),
    ):
        actual = found[key]
        if actual != in_file:
            yield subject.fail(
                f"{field} is {actual}, the file says {in_file}", f"set it to {actual}"
            )
    if found.get("MapPublicIpOnLaunch"):
        yield subject.fail("it gives its nodes public addresses", "name a private subnet")
    needed = missing_addresses(aws, cluster)[subnet.availability_zone_id]
    free = found["AvailableIpAddressCount"]
    message = f"{needed} addresses needed, {free} free"
    if free < needed:
        action = "name a larger subnet, or fewer instances (a P5 takes 32 addresses, on EKS 60)"
        yield subject.fail(message, action)
    else:
        yield subject.ok(message)


def check_routes(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check that each route table belongs to its subnet, and check its default route and its path to S3."""
    network = cluster.network
    if not isinstance(network, ExistingVpc):
        return
    tables = {
        table["RouteTableId"]: table
        for table in _in_vpc(aws, network, "route_tables", "RouteTables")
    }
    table_of = {
        association["SubnetId"]: table_id
        for table_id, table in tables.items()
        for association in table["Associations"]
        if "SubnetId" in association
    }
    main = "none"
    for table_id, table in tables.items():
        if any(association["Main"] for association in table["Associations"]):
            main = table_id
    with_s3 = set()
    for endpoint in _in_vpc(aws, network, "vpc_endpoints", "VpcEndpoints"):
        if endpoint["VpcEndpointType"] == "Gateway" and endpoint["ServiceName"].endswith(".s3"):
            with_s3.update(endpoint["RouteTableIds"])
    deployed = is_deployed(aws, cluster, "network")
    owner = _foreign_owner(aws, network)
    for subnet in _subnets_in_vpc(aws, network):
        subject = Subject(f"routes of {subnet.subnet_id}")
        if owner and subnet.route_table_id not in tables:
            yield subject.unknown(
                f"account {owner} owns the VPC, and this account does not see the route table",
                f"ask account {owner} for a route to the internet or endpoints, and one to S3",
            )
            continue
        actual = table_of.get(subnet.subnet_id, main)
        if actual != subnet.route_table_id:
            yield subject.fail(
                f"the file says {subnet.route_table_id}, the subnet uses {actual}",
                f"set route_table_id to {actual}",
            )
            continue
        way_out = _way_out(tables[actual]["Routes"])
        yield _judge_way_out(subject, cluster, way_out)
        if network.s3_gateway_endpoint and actual in with_s3 and not deployed:
            yield subject.fail(
                "a gateway endpoint for S3 exists, and AWS rejects a second one",
                "set network.s3_gateway_endpoint to false",
            )
        elif not network.s3_gateway_endpoint and actual not in with_s3:
            lacking = "no gateway endpoint for S3"
            action = "set network.s3_gateway_endpoint to true"
            if owner:
                lacking = "this account sees no gateway endpoint for S3"
                action = f"ask account {owner}, which owns the VPC, to add one if there is none"
            if way_out is None and not owner:
                yield subject.fail(
                    f"{lacking} and no internet access: nodes cannot fetch their scripts", action
                )
            elif way_out is None:
                yield subject.warn(f"{lacking} and no internet access", action)
            else:
                yield subject.warn(f"{lacking}: NAT bills every byte to and from it", action)


def check_endpoints(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check that no interface endpoint is missing in a closed VPC, and that none would exist twice."""
    network = cluster.network
    if not isinstance(network, ExistingVpc) or is_deployed(aws, cluster, "network"):
        return
    present = {
        endpoint["ServiceName"]: endpoint
        for endpoint in _in_vpc(aws, network, "vpc_endpoints", "VpcEndpoints")
        if endpoint["VpcEndpointType"] == "Interface"
    }
    needed = list(endpoint_services(cluster).values())
    whole = {name: whole_name(name, cluster.region) for name in needed}
    twice = [name for name in needed if present.get(whole[name], {}).get("PrivateDnsEnabled")]
    if network.interface_endpoints and twice:
        yield ENDPOINTS.fail(
            f"the VPC already has {', '.join(twice)}, and AWS rejects a second one with private DNS",
            "set network.interface_endpoints to false and add the missing ones to the VPC manually",
        )
    missing = [name for name in needed if whole[name] not in present]
    owner = _foreign_owner(aws, network)
    if owner and missing and _is_closed(aws, network):
        yield ENDPOINTS.warn(
            f"no internet access, and this account sees no endpoints for {', '.join(missing)}",
            f"ask account {owner}, which owns the VPC, whether it has them",
        )
    elif not network.interface_endpoints and missing and _is_closed(aws, network):
        yield ENDPOINTS.fail(
            f"no internet access, and no endpoints for {', '.join(missing)}",
            "set network.interface_endpoints to true, or add them to the VPC",
        )


def check_endpoint_zones(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check that each interface endpoint is in a zone that its service offers; EC2 refuses it in others."""
    network = cluster.network
    own = zone_ids(cluster)
    if not network.interface_endpoints:
        return
    services = {
        name: whole_name(name, cluster.region) for name in endpoint_services(cluster).values()
    }
    # A filter returns what exists. ServiceNames would be refused as a whole if one service does not exist.
    only = [{"Name": "service-name", "Values": list(services.values())}]
    details = aws.items("ec2", "describe_vpc_endpoint_services", "ServiceDetails", Filters=only)
    offered = {detail["ServiceName"]: detail["AvailabilityZoneIds"] for detail in details}
    num_right = 0
    for service, full_name in services.items():
        zone = network.endpoint_zones.get(service, own[0])
        zones = sorted(offered.get(full_name, []))
        if zone in zones:
            num_right += 1
            continue
        subject = Subject(f"endpoint {service}")
        if not zones:
            action = (
                "turn off the feature that needs it, or set network.interface_endpoints to false"
            )
            yield subject.fail(f"{cluster.region} has no endpoint service {full_name}", action)
            continue
        usable = [name for name in own if name in zones]
        if usable:
            action = f"set network.endpoint_zones to {{{service}: {usable[0]}}}"
        else:
            action = (
                "add a zone of these to the network, and set network.endpoint_zones to"
                f" {{{service}: {zones[0]}}}"
            )
        yield subject.fail(f"{full_name} is offered in {', '.join(zones)}, not in {zone}", action)
    if num_right == len(services):
        yield Subject("endpoint zones").ok(
            f"all {num_right} services are offered in the zones of their endpoints"
        )


def _in_vpc(aws: ReadOnlyAws, network: ExistingVpc, plural: str, key: str) -> list[Any]:
    """Return all resources of a kind in the VPC; ``key`` is that of the list in EC2's response."""
    filters = [{"Name": "vpc-id", "Values": [network.vpc_id]}]
    return aws.items("ec2", f"describe_{plural}", key, Filters=filters)


def _way_out(routes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the default route, or None."""
    return next(
        (route for route in routes if route.get("DestinationCidrBlock") == "0.0.0.0/0"), None
    )


def _is_closed(aws: ReadOnlyAws, network: ExistingVpc) -> bool:
    """Return whether a subnet of the cluster has no default route."""
    tables = _in_vpc(aws, network, "route_tables", "RouteTables")
    named = {subnet.route_table_id for subnet in network.private_subnets}
    return any(
        _way_out(table["Routes"]) is None for table in tables if table["RouteTableId"] in named
    )


def _judge_way_out(subject: Subject, cluster: Cluster, route: dict[str, Any] | None) -> Finding:
    network = cluster.network
    if route is None and isinstance(network, ExistingVpc) and network.proxy:
        return subject.ok(f"the internet is reached through the proxy {network.proxy.url}")
    if route is None and isinstance(cluster, EksCluster) and not takes_copies(cluster):
        return subject.fail(
            "no internet access, from which nodes pull images of operators and plugins",
            "set kubernetes.images to image_repository, or name subnets whose route table leads to a NAT "
            "gateway",
        )
    is_fetching = isinstance(cluster, SlurmCluster) and cluster.node_setup.downloads == "internet"
    if route is None and is_fetching and cluster.prometheus:
        return subject.fail(
            "no internet access, from which nodes fetch the software for prometheus",
            "set node_setup.downloads to artifact_bucket, or prometheus to false",
        )
    if route is None:
        return subject.warn(
            "no internet access", "nodes can use neither pip nor public container registries"
        )
    if route.get("State") == "blackhole":
        return subject.fail("the target of the default route was deleted", "repair the route table")
    if route.get("GatewayId", "").startswith("igw-"):
        return subject.fail(
            "the default route is an internet gateway, so the subnet is public",
            "name private subnets",
        )
    return subject.ok("it has internet access")
