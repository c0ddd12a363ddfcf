"""A VPC that is given: whether what the file says about it is so."""

from __future__ import annotations

from collections.abc import Iterator

from botocore.exceptions import ClientError

from config.cluster import Cluster, ExistingSubnet, ExistingVpc
from tools.aws_session import is_absent
from tools.preflight.finding import Finding, fail, ok
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.still_missing import missing_addresses


def check_existing_vpc(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    network = cluster.network
    if not isinstance(network, ExistingVpc):
        return
    subject = f"VPC {network.vpc_id}"
    try:
        vpc = aws.call("ec2", "describe_vpcs", VpcIds=[network.vpc_id])["Vpcs"][0]
    except ClientError as error:
        if not is_absent(error):
            raise
        yield fail(subject, str(error), "set network.vpc_id to a VPC of this account and region")
        return
    cidrs = [block["CidrBlock"] for block in vpc.get("CidrBlockAssociationSet", [])]
    if network.cidr in cidrs:
        yield ok(subject, f"has {network.cidr}")
    else:
        yield fail(
            subject, f"its ranges are {', '.join(cidrs)}", f"set network.cidr (now {network.cidr}) to one"
        )
    for attribute in ("enableDnsSupport", "enableDnsHostnames"):
        answer = aws.call("ec2", "describe_vpc_attribute", VpcId=network.vpc_id, Attribute=attribute)
        if not answer[attribute[0].upper() + attribute[1:]]["Value"]:
            yield fail(
                subject,
                f"{attribute} is off; FSx and the interface endpoints are reached by name",
                f"`aws ec2 modify-vpc-attribute --vpc-id {network.vpc_id} --{_option(attribute)}`",
            )
    for subnet in network.private_subnets:
        yield from _check_subnet(aws, cluster, network, subnet)


def _option(attribute: str) -> str:
    return {"enableDnsSupport": "enable-dns-support", "enableDnsHostnames": "enable-dns-hostnames"}[attribute]


def _check_subnet(
    aws: ReadOnlyAws, cluster: Cluster, network: ExistingVpc, subnet: ExistingSubnet
) -> Iterator[Finding]:
    subject = f"subnet {subnet.subnet_id}"
    try:
        found = aws.call("ec2", "describe_subnets", SubnetIds=[subnet.subnet_id])["Subnets"][0]
    except ClientError as error:
        if not is_absent(error):
            raise
        yield fail(subject, str(error), "set network.private_subnets to subnets of the VPC")
        return
    for field, key, told in (
        ("vpc_id", "VpcId", network.vpc_id),
        ("availability_zone_id", "AvailabilityZoneId", subnet.availability_zone_id),
        ("cidr", "CidrBlock", subnet.cidr),
    ):
        if found[key] != told:
            yield fail(subject, f"{field} is {found[key]}, the file says {told}", f"set it to {found[key]}")
    if found.get("MapPublicIpOnLaunch"):
        yield fail(subject, "gives its nodes public addresses", "name a private subnet")
    yield _addresses(aws, cluster, subnet, free=found["AvailableIpAddressCount"])


def _addresses(aws: ReadOnlyAws, cluster: Cluster, subnet: ExistingSubnet, *, free: int) -> Finding:
    subject = f"subnet {subnet.subnet_id}"
    needed = missing_addresses(aws, cluster)[subnet.availability_zone_id]
    if free < needed:
        return fail(
            subject,
            f"{needed} addresses needed, {free} free",
            "name a larger subnet, or fewer instances (a P5 takes 32 addresses, on EKS 60)",
        )
    return ok(subject, f"{needed} addresses needed, {free} free")
