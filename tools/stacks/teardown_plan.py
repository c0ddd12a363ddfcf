"""Resources that a teardown deletes or keeps, their bills, and reasons for which the network stays.

Bills are given as units, because prices change and differ between regions.
"""

from collections.abc import Collection
from dataclasses import dataclass

import boto3

from config.cluster import Cluster
from config.resource_names import control_plane_log_group, stack_names
from tools.aws_session import aws_client
from tools.stacks.stack_contents import NEVER_DEPLOYED, StackContents, StackResource, read_stack

HOLDING = {"AWS::FSx::FileSystem", "AWS::RDS::DBInstance", "AWS::EC2::SecurityGroup"}
"""Kept resources with interfaces in the subnets, or with rules that name the cluster's security group."""
DATA_LINK = "AWS::FSx::DataRepositoryAssociation"
HOLDS_DATA = {
    "AWS::SageMaker::Cluster": "the cluster, with all its nodes and what is on their disks",
    "AWS::EKS::Cluster": "the control plane, with all objects of Kubernetes and what is in its volumes",
    "AWS::FSx::FileSystem": "file system",
    "AWS::S3::Bucket": "bucket, with all versions of its objects",
    "AWS::RDS::DBInstance": "database",
    "AWS::ECR::Repository": "image repository, with its images",
    "AWS::KMS::Key": "key (30 days until it is gone)",
    "AWS::APS::Workspace": "metrics",
    "AWS::SageMaker::MlflowApp": "MLflow, with all its runs",
    "AWS::SageMaker::MlflowTrackingServer": "MLflow, with all its runs",
    "AWS::SageMaker::Domain": "Studio, with people's spaces and their disks",
    "AWS::Grafana::Workspace": "Grafana, with people's dashboards",
}


@dataclass(frozen=True)
class TeardownPlan:
    stacks: tuple[StackContents, ...]
    """Stacks to delete, in this order."""
    network_held: StackContents | None
    """The network stack, if it must stay."""
    holders: tuple[str, ...]
    """Ids of the resources that use the network."""
    service_logs: tuple[str, ...]
    """Log groups that belong to no stack: HyperPod, EKS and their agents made them."""
    mount_names: dict[str, str]
    """Names under which Lustre file systems are mounted, by id."""

    @property
    def kept(self) -> list[StackResource]:
        return [
            resource
            for stack in self.stacks
            for resource in stack.resources
            if resource.physical_id and (resource.is_kept or resource.leaves_snapshot)
        ]

    @property
    def deleted(self) -> list[StackResource]:
        """Resources with data that is lost for good."""
        return [
            resource
            for stack in self.stacks
            for resource in stack.resources
            if resource.physical_id
            and not (resource.is_kept or resource.leaves_snapshot)
            and resource.resource_type in HOLDS_DATA
        ]


def make_plan(session: boto3.Session, cluster: Cluster) -> TeardownPlan:
    """Read the deployed stacks; raises ValueError if one of them is being changed just now."""
    cloudformation = aws_client(session, "cloudformation")
    # Including stacks whose section is no longer in the file.
    found_stacks = [read_stack(cloudformation, name) for name in stack_names(cluster)]
    for stack in found_stacks:
        if stack and stack.status.endswith("_IN_PROGRESS") and stack.status != NEVER_DEPLOYED:
            raise ValueError(
                f"stack {stack.name} is being changed ({stack.status}); wait until that has ended"
            )
    network, *others = found_stacks
    going = [stack for stack in reversed(others) if stack]
    resources = [resource for stack in going for resource in stack.resources]
    deleted = {resource.physical_id for resource in resources if not resource.is_kept}
    holders: list[str] = []
    if network:
        found = [*kept_holders(resources), *live_holders(session, network)]
        holders = sorted({holder for holder in found if holder not in deleted})
    if network and not holders:
        going.append(network)
    return TeardownPlan(
        stacks=tuple(going),
        network_held=network if holders else None,
        holders=tuple(holders),
        service_logs=tuple(name for name in _service_logs(session, cluster) if name not in deleted),
        mount_names={
            system["FileSystemId"]: system["LustreConfiguration"]["MountName"]
            for page in aws_client(session, "fsx").get_paginator("describe_file_systems").paginate()
            for system in page["FileSystems"]
            if "LustreConfiguration" in system
        },
    )


def _service_logs(session: boto3.Session, cluster: Cluster) -> tuple[str, ...]:
    """HyperPod logs node setup in a group of its own, which belongs to no stack and never expires.

    CloudWatch's agent on the nodes writes to one beside it, which is the stack's. So are those of EKS and
    Container Insights, which they make again for what they say when the stack's are gone.
    """
    prefixes = [f"/aws/sagemaker/Clusters/{cluster.name}/"]
    if cluster.scheduler == "eks":
        prefixes += [control_plane_log_group(cluster), f"/aws/containerinsights/{cluster.name}/"]
    paginator = aws_client(session, "logs").get_paginator("describe_log_groups")
    return tuple(
        group["logGroupName"]
        for prefix in prefixes
        for page in paginator.paginate(logGroupNamePrefix=prefix)
        for group in page["logGroups"]
    )


def describe_plan(plan: TeardownPlan) -> str:
    lines = ["Stacks to delete, in this order:"]
    lines += [f"  {stack.name} ({len(stack.resources)} resources)" for stack in plan.stacks] or ["  none"]
    if plan.deleted:
        lines += ["", "Lost for good:"]
        lines += [f"  {r.physical_id}: {HOLDS_DATA[r.resource_type]}" for r in plan.deleted]
    if remains := describe_remains(plan):
        lines += ["", remains]
    return "\n".join(lines)


def describe_remains(plan: TeardownPlan) -> str:
    """List what stays in the account and how to delete it; empty if nothing stays."""
    lines: list[str] = []
    if plan.kept or plan.service_logs:
        lines.append("Kept in the account, outside of any stack:")
        for resource in sorted(plan.kept, key=_order_of_deletion):
            lines += _describe_kept(resource, plan.mount_names)
        for name in plan.service_logs:
            lines += [f"  {name}: a service's log, bills by the GB and month"]
            lines += [f"      aws logs delete-log-group --log-group-name {name}"]
    if plan.network_held:
        lines += [*([""] if lines else []), *_describe_network(plan, plan.network_held)]
    return "\n".join(lines)


def _order_of_deletion(resource: StackResource) -> tuple[bool, bool]:
    """A link before its bucket, which must not be emptied while it is there; then what bills."""
    return resource.resource_type != DATA_LINK, not bill_of(resource)


def _describe_kept(resource: StackResource, mount_names: dict[str, str]) -> list[str]:
    kind = resource.resource_type.removeprefix("AWS::").replace("::", " ")
    lines = [f"  {resource.physical_id} ({kind}): {bill_of(resource) or 'bills nothing'}"]
    field = _field_for(resource, mount_names)
    return [
        *lines,
        *([f"      to use it again: {field}"] if field else []),
        *([f"      {deletion}"] if (deletion := deletion_of(resource)) else []),
    ]


def _field_for(resource: StackResource, mount_names: dict[str, str]) -> str:
    """Return the field of the cluster file with which a deployment uses a resource; empty without one."""
    name = resource.physical_id
    match resource.resource_type:
        case "AWS::FSx::FileSystem" if name in mount_names:
            existing = (
                f'{{file_system_id: {name}, mount_name: "{mount_names[name]}"}}'  # 1e234567 is a number
            )
            return f"storage.lustre.existing: {existing}"
        case "AWS::FSx::FileSystem":
            return f"storage.home.existing: {name}"
        case "AWS::S3::Bucket" if resource.logical_id.startswith("Data"):
            return f"storage.data_bucket.existing: {name}"
        case "AWS::KMS::Key":
            return f"storage.kms: <ARN of key {name}>"
    return ""


def _describe_network(plan: TeardownPlan, network: StackContents) -> list[str]:
    bill = network_bill(network)
    return [
        f"Stack {network.name} stays, because a network in use cannot be deleted: "
        f"{', '.join(plan.holders)} use it.",
        f"  It bills {bill}." if bill else "  It bills nothing.",
        "  Delete what holds it (above), then run `make teardown` again.",
    ]


def buckets_to_empty(stack: StackContents) -> list[str]:
    """Buckets that go with the stack; CloudFormation deletes empty ones only."""
    buckets = stack.of_type("AWS::S3::Bucket")
    return [bucket.physical_id for bucket in buckets if bucket.physical_id and not bucket.is_kept]


def bill_of(resource: StackResource) -> str:
    """Describe how a resource is billed; empty if it is free."""
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
            return f"still runs and bills by the hour as {properties.get('DBInstanceClass')}"
        case "AWS::Logs::LogGroup":
            return "bills by the GB and month"
        case "AWS::APS::Workspace":
            return "bills for stored samples"
        case "AWS::ECR::Repository":
            return "bills by the GB and month for its images"
    return ""


def deletion_of(resource: StackResource) -> str:
    """Return the command that deletes a resource; empty if none is needed."""
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
    """Describe the bill of a network stack that stays; empty if it is free."""
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


def kept_holders(resources: Collection[StackResource]) -> list[str]:
    """Return the ids of kept resources that use the network."""
    return [r.physical_id for r in resources if r.is_kept and r.physical_id and r.resource_type in HOLDING]


def live_holders(session: boto3.Session, network: StackContents) -> list[str]:
    """Return the ids of all file systems, databases and security groups that use the network now.

    In an existing VPC, only the stack's own security group counts, and nothing else of that VPC.
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
    """Return other groups with a rule from or to these; EC2 then deletes neither group nor VPC."""
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
