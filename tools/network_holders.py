"""What has its interfaces in a network, and so keeps the network from being deleted."""

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
    """Ids of the file systems and databases that are in the network now, whoever made them."""
    vpcs = [vpc.physical_id for vpc in network.of_type("AWS::EC2::VPC")]
    groups = [group.physical_id for group in network.of_type("AWS::EC2::SecurityGroup")]
    if vpcs:
        place = {"Name": "vpc-id", "Values": vpcs}
    elif groups:
        place = {"Name": "group-id", "Values": groups}
    else:
        return []
    pages = aws_client(session, "ec2").get_paginator("describe_network_interfaces").paginate(Filters=[place])
    interfaces = {
        interface["NetworkInterfaceId"] for page in pages for interface in page["NetworkInterfaces"]
    }
    file_systems = [
        system["FileSystemId"]
        for page in aws_client(session, "fsx").get_paginator("describe_file_systems").paginate()
        for system in page["FileSystems"]
        if interfaces & set(system.get("NetworkInterfaceIds", []))
    ]
    databases = [
        database["DBInstanceIdentifier"]
        for page in aws_client(session, "rds").get_paginator("describe_db_instances").paginate()
        for database in page["DBInstances"]
        if database.get("DBSubnetGroup", {}).get("VpcId") in vpcs
    ]
    return file_systems + databases
