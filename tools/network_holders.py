"""What is still in a network, or names its security group, and so keeps the network from being deleted."""

from __future__ import annotations

from collections.abc import Collection

import boto3

from tools.aws_session import aws_client
from tools.stack_contents import StackContents, StackResource

HOLDING = {"AWS::FSx::FileSystem", "AWS::RDS::DBInstance", "AWS::EC2::SecurityGroup"}
"""Kept resources with interfaces in the subnets, or with rules that name the cluster's security group."""


def kept_holders(resources: Collection[StackResource]) -> list[str]:
    """Ids of those resources that are kept and hold the network."""
    return [r.physical_id for r in resources if r.is_kept and r.physical_id and r.resource_type in HOLDING]


def live_holders(session: boto3.Session, network: StackContents) -> list[str]:
    """Ids of what holds the network now, whoever made it: file systems, databases, security groups.

    In a VPC that is given only the stack's own security group is at stake, and nothing else in that VPC.
    """
    vpcs = {vpc.physical_id for vpc in network.of_type("AWS::EC2::VPC")}
    own_groups = {group.physical_id for group in network.of_type("AWS::EC2::SecurityGroup")}
    groups = _groups_that_name(session, own_groups)
    return [
        *_file_systems(session, vpcs, own_groups),
        *_databases(session, vpcs, own_groups | groups),
        *sorted(groups),
    ]


def _groups_that_name(session: boto3.Session, own_groups: set[str]) -> set[str]:
    """Other security groups with a rule from or to one of these: EC2 then deletes neither group nor VPC."""
    if not own_groups:
        return set()
    paginator = aws_client(session, "ec2").get_paginator("describe_security_groups")
    found = {
        group["GroupId"]
        for direction in ("ip-permission.group-id", "egress.ip-permission.group-id")
        for page in paginator.paginate(Filters=[{"Name": direction, "Values": sorted(own_groups)}])
        for group in page["SecurityGroups"]
    }
    return found - own_groups


def _file_systems(session: boto3.Session, vpcs: set[str], own_groups: set[str]) -> list[str]:
    if not vpcs | own_groups:
        return []
    name, values = ("vpc-id", vpcs) if vpcs else ("group-id", own_groups)
    place = {"Name": name, "Values": sorted(values)}
    pages = aws_client(session, "ec2").get_paginator("describe_network_interfaces").paginate(Filters=[place])
    interfaces = {
        interface["NetworkInterfaceId"] for page in pages for interface in page["NetworkInterfaces"]
    }
    return [
        system["FileSystemId"]
        for page in aws_client(session, "fsx").get_paginator("describe_file_systems").paginate()
        for system in page["FileSystems"]
        if interfaces & set(system.get("NetworkInterfaceIds", []))
    ]


def _databases(session: boto3.Session, vpcs: set[str], groups: set[str]) -> list[str]:
    return [
        database["DBInstanceIdentifier"]
        for page in aws_client(session, "rds").get_paginator("describe_db_instances").paginate()
        for database in page["DBInstances"]
        if database.get("DBSubnetGroup", {}).get("VpcId") in vpcs
        or groups & {member["VpcSecurityGroupId"] for member in database.get("VpcSecurityGroups", [])}
    ]
