"""What a resource that outlives its stack costs, and how it is deleted by hand.

Dollars are list prices in us-east-1 (AWS pricing pages, November 2026), to the first digit that matters.
"""

from __future__ import annotations

from typing import Any

from tools.stack_contents import StackContents, StackResource

LUSTRE_USD_PER_GIB_MONTH = {125: 0.145, 250: 0.21, 500: 0.34, 1000: 0.6}
"""PERSISTENT_2 on SSD, by MB/s per TiB."""
NAT_USD_PER_MONTH = 37
"""Gateway 0.045 and its public address 0.005 an hour, without traffic."""
ENDPOINT_USD_PER_MONTH = 7.3
"""Interface endpoint in one zone, 0.01 an hour."""


def bill_of(resource: StackResource) -> str:
    """What it bills; empty for what is free."""
    properties = resource.properties
    match resource.resource_type:
        case "AWS::FSx::FileSystem":
            return _file_system_bill(properties)
        case "AWS::S3::Bucket":
            return "bills for what is in it, about $23 a month per TB"
        case "AWS::KMS::Key":
            return "bills $1 a month"
        case "AWS::SecretsManager::Secret":
            return "bills $0.40 a month"
        case "AWS::RDS::DBInstance":
            if resource.leaves_snapshot:
                return "bills for the snapshot, about $0.10 a month per GB"
            return f"goes on running and bills by the hour as {properties.get('DBInstanceClass')}"
        case "AWS::Logs::LogGroup":
            return "bills about $0.03 a month per GB"
        case "AWS::APS::Workspace":
            return "bills for stored samples"
    return ""


def _file_system_bill(properties: dict[str, Any]) -> str:
    capacity_gib = properties.get("StorageCapacity", 0)
    rate = properties.get("LustreConfiguration", {}).get("PerUnitStorageThroughput")
    if rate in LUSTRE_USD_PER_GIB_MONTH:
        usd = capacity_gib * LUSTRE_USD_PER_GIB_MONTH[rate]
        return f"bills about ${usd:,.0f} a month ({capacity_gib} GiB at {rate} MB/s per TiB), used or not"
    return f"bills by the month for {capacity_gib} GiB and its throughput, used or not"


def deletion_of(resource: StackResource) -> str:
    """The command that deletes it; empty where it is not worth one."""
    physical_id = resource.physical_id
    match resource.resource_type:
        case "AWS::FSx::FileSystem":
            return f"aws fsx delete-file-system --file-system-id {physical_id}"
        case "AWS::S3::Bucket":
            return f"empty it (S3 console), then aws s3api delete-bucket --bucket {physical_id}"
        case "AWS::KMS::Key":
            return f"last of all: aws kms schedule-key-deletion --key-id {physical_id}"
        case "AWS::SecretsManager::Secret":
            return f"aws secretsmanager delete-secret --secret-id {physical_id}"
        case "AWS::RDS::DBInstance" if resource.leaves_snapshot:
            return "aws rds describe-db-snapshots, then aws rds delete-db-snapshot"
        case "AWS::RDS::DBInstance":
            return (
                f"aws rds modify-db-instance --db-instance-identifier {physical_id} "
                "--no-deletion-protection --apply-immediately, then aws rds delete-db-instance "
                f"--db-instance-identifier {physical_id} --final-db-snapshot-identifier {physical_id}-final"
            )
        case "AWS::RDS::DBSubnetGroup":
            return f"aws rds delete-db-subnet-group --db-subnet-group-name {physical_id}"
        case "AWS::RDS::DBParameterGroup":
            return f"aws rds delete-db-parameter-group --db-parameter-group-name {physical_id}"
        case "AWS::EC2::SecurityGroup":
            return f"aws ec2 delete-security-group --group-id {physical_id}"
        case "AWS::Logs::LogGroup":
            return f"aws logs delete-log-group --log-group-name {physical_id}"
        case "AWS::APS::Workspace":
            return f"aws amp delete-workspace --workspace-id {physical_id.rpartition('/')[2]}"
    return ""


def network_bill(network: StackContents) -> str:
    """What a network stack bills while it stays; empty if nothing in it does."""
    parts = []
    if gateways := len(network.of_type("AWS::EC2::NatGateway")):
        parts.append(f"NAT gateway about ${gateways * NAT_USD_PER_MONTH} a month")
    endpoints = [
        endpoint
        for endpoint in network.of_type("AWS::EC2::VPCEndpoint")
        if endpoint.properties.get("VpcEndpointType") == "Interface"
    ]
    if endpoints:
        usd = len(endpoints) * ENDPOINT_USD_PER_MONTH
        parts.append(f"{len(endpoints)} interface endpoints about ${usd:,.0f} a month")
    return ", ".join(parts)
