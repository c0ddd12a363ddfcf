"""What a resource that outlives its stack costs, and how it is deleted by hand.

Units instead of prices: those differ between regions and change.
"""

from __future__ import annotations

from tools.stack_contents import StackContents, StackResource

DATA_LINK = "AWS::FSx::DataRepositoryAssociation"


def bill_of(resource: StackResource) -> str:
    """What it bills; empty for what is free."""
    properties = resource.properties
    match resource.resource_type:
        case "AWS::FSx::FileSystem":
            capacity_gib = properties.get("StorageCapacity", 0)
            return f"bills by the hour for {capacity_gib:,} GiB and its throughput, used or not"
        case "AWS::S3::Bucket":
            return "bills by the GB and month for what is in it, versions too"
        case "AWS::KMS::Key":
            return "bills by the month"
        case "AWS::SecretsManager::Secret":
            return "bills by the month"
        case "AWS::RDS::DBInstance":
            if resource.leaves_snapshot:
                return "bills by the GB and month for the snapshot"
            return f"goes on running and bills by the hour as {properties.get('DBInstanceClass')}"
        case "AWS::Logs::LogGroup":
            return "bills by the GB and month"
        case "AWS::APS::Workspace":
            return "bills for stored samples"
        case "AWS::ECR::Repository":
            return "bills by the GB and month for its images"
    return ""


def deletion_of(resource: StackResource) -> str:
    """The command that deletes it; empty where it is not worth one."""
    physical_id = resource.physical_id
    match resource.resource_type:
        case "AWS::FSx::FileSystem":
            return f"aws fsx delete-file-system --file-system-id {physical_id}"
        case _ if resource.resource_type == DATA_LINK:
            return (
                "before its bucket is emptied, or the files in the file system go as well: aws fsx "
                f"delete-data-repository-association --association-id {physical_id} "
                "--no-delete-data-in-file-system"
            )
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
                f"aws rds delete-db-instance --db-instance-identifier {physical_id} "
                f"--final-db-snapshot-identifier {physical_id}-final"
            )
        case "AWS::RDS::DBSubnetGroup":
            return f"aws rds delete-db-subnet-group --db-subnet-group-name {physical_id}"
        case "AWS::RDS::DBParameterGroup":
            return f"aws rds delete-db-parameter-group --db-parameter-group-name {physical_id}"
        case "AWS::EC2::SecurityGroup":
            return f"aws ec2 delete-security-group --group-id {physical_id}"
        case "AWS::Logs::LogGroup":
            return f"aws logs delete-log-group --log-group-name {physical_id}"
        case "AWS::ECR::Repository":
            name = resource.properties.get("RepositoryName", physical_id)
            return f"aws ecr delete-repository --force --repository-name {name}"
        case "AWS::APS::Workspace":
            return f"aws amp delete-workspace --workspace-id {physical_id.rpartition('/')[2]}"
    return ""


def network_bill(network: StackContents) -> str:
    """What a network stack bills while it stays; empty if nothing in it does."""
    endpoints = [
        endpoint
        for endpoint in network.of_type("AWS::EC2::VPCEndpoint")
        if endpoint.properties.get("VpcEndpointType") == "Interface"
    ]
    billed = {
        "NAT gateway": len(network.of_type("AWS::EC2::NatGateway")),
        "interface endpoint": len(endpoints),
    }
    parts = [f"{number} {name}{'s' if number > 1 else ''}" for name, number in billed.items() if number]
    return f"{' and '.join(parts)} by the hour, and their traffic" if parts else ""
