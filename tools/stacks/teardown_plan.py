"""Resources that a teardown deletes or keeps, their bills, and reasons for which the network stays.

Bills are given as units, because prices change and differ between regions.
"""

from dataclasses import dataclass

import boto3

from config.cluster import Cluster
from config.eks_cluster import EksCluster, has_node_memory
from config.resource_names import (
    COMMON_NAMESPACE,
    LUSTRE_CLAIM,
    LUSTRE_STORAGE_CLASS,
    NODE_MEMORY_CLAIM,
    ResourceNames,
    job_namespaces,
    stack_names,
)
from manifests.lustre import FOLDER_JOB, volume_name
from manifests.node_memory import memory_volume_name
from manifests.objects import SYSTEM_NAMESPACE
from tools.aws_session import all_items, aws_client
from tools.stacks.stack_contents import NEVER_DEPLOYED, StackContents, StackResource, read_stack

HOLDING = {"AWS::FSx::FileSystem", "AWS::RDS::DBInstance", "AWS::EC2::SecurityGroup"}
"""Types of retained resources that use the network: by interfaces in its subnets, or by rules that name the
cluster's security group."""
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
"""Resources with data by type, and their description in the plan."""


@dataclass(frozen=True)
class TeardownPlan:
    stacks: tuple[StackContents, ...]
    """Stacks to delete, in this order."""
    network_held: StackContents | None
    """Network stack, if it must stay."""
    holders: tuple[str, ...]
    """Ids of the resources that use the network."""
    service_logs: tuple[str, ...]
    """Log groups that HyperPod, EKS or their agents created, and that belong to no stack."""
    mount_names: dict[str, str]
    """Mount names of Lustre file systems, by id."""
    endpoints: dict[str, str]
    """DNS names of databases, by id."""
    kubernetes_objects: tuple[str, ...] = ()
    """Commands that delete what stays in an existing EKS cluster."""

    @property
    def resources(self) -> list[StackResource]:
        """Existing resources of the stacks to delete."""
        return [
            resource
            for stack in self.stacks
            for resource in stack.resources
            if resource.physical_id
        ]

    @property
    def kept(self) -> list[StackResource]:
        """Resources that outlive their stack, or leave a snapshot."""
        return [
            resource for resource in self.resources if resource.is_kept or resource.leaves_snapshot
        ]

    @property
    def deleted(self) -> list[StackResource]:
        """Resources with data that is lost for good."""
        with_data = [
            resource for resource in self.resources if resource.resource_type in HOLDS_DATA
        ]
        return [
            resource for resource in with_data if not (resource.is_kept or resource.leaves_snapshot)
        ]


def make_plan(session: boto3.Session, cluster: Cluster) -> TeardownPlan:
    """Return the plan for the deployed stacks.

    Raises:
        ValueError: if a change of one of them is in progress.
    """
    cloudformation = aws_client(session, "cloudformation")
    # Stacks without a section in the file may still be deployed.
    found_stacks = [read_stack(cloudformation, name) for name in stack_names(cluster)]
    for stack in found_stacks:
        if stack and stack.status.endswith("_IN_PROGRESS") and stack.status != NEVER_DEPLOYED:
            raise ValueError(
                f"stack {stack.name} is being changed ({stack.status}); wait until that has ended"
            )
    network, *others = found_stacks
    to_delete = [stack for stack in reversed(others) if stack]
    resources = [resource for stack in to_delete for resource in stack.resources]
    deleted = {resource.physical_id for resource in resources if not resource.is_kept}
    holders: list[str] = []
    if network:
        possible = {
            resource.physical_id
            for resource in resources
            if resource.physical_id and resource.resource_type in HOLDING
        }
        holders = sorted({*possible, *live_holders(session, network)} - deleted)
    if network and not holders:
        to_delete.append(network)
    return TeardownPlan(
        stacks=tuple(to_delete),
        network_held=network if holders else None,
        holders=tuple(holders),
        service_logs=tuple(name for name in _service_logs(session, cluster) if name not in deleted),
        mount_names=_mount_names(session),
        endpoints=_endpoints(session),
        kubernetes_objects=tuple(_object_commands(cluster)),
    )


def _object_commands(cluster: Cluster) -> list[str]:
    """Return commands for the objects that a stack leaves in an existing EKS cluster; empty without one.

    The stack deletes no claims, because the deletion would wait for the pods that use them.
    """
    if not (isinstance(cluster, EksCluster) and cluster.kubernetes.existing):
        return []
    namespaces = job_namespaces(cluster)
    with_claims = [SYSTEM_NAMESPACE, *namespaces]
    # A finished pod of a job still holds its claim.
    in_system = f"--namespace {SYSTEM_NAMESPACE}"
    commands = [
        f"kubectl get jobs --output name {in_system} | grep /{FOLDER_JOB}- | xargs kubectl delete {in_system}"
    ]
    commands += [
        f"kubectl delete persistentvolumeclaim {LUSTRE_CLAIM} --namespace {name}"
        for name in with_claims
    ]
    volumes = [volume_name(name) for name in with_claims]
    if has_node_memory(cluster):
        commands += [
            f"kubectl delete persistentvolumeclaim {NODE_MEMORY_CLAIM} --namespace {name}"
            for name in namespaces
        ]
        volumes += [memory_volume_name(name) for name in namespaces]
    commands.append(f"kubectl delete persistentvolume {' '.join(volumes)}")
    commands.append(f"kubectl delete storageclass {LUSTRE_STORAGE_CLASS}")
    if COMMON_NAMESPACE in namespaces:
        commands.append(f"kubectl delete namespace {COMMON_NAMESPACE}")
    return commands


def _mount_names(session: boto3.Session) -> dict[str, str]:
    """Return the mount names of the account's Lustre file systems, by id."""
    systems = all_items(aws_client(session, "fsx"), "describe_file_systems", "FileSystems")
    return {
        system["FileSystemId"]: system["LustreConfiguration"]["MountName"]
        for system in systems
        if "LustreConfiguration" in system
    }


def _endpoints(session: boto3.Session) -> dict[str, str]:
    """Return the DNS names of the account's databases, by id."""
    databases = all_items(aws_client(session, "rds"), "describe_db_instances", "DBInstances")
    return {
        database["DBInstanceIdentifier"]: database["Endpoint"]["Address"]
        for database in databases
        if "Endpoint" in database
    }


def _service_logs(session: boto3.Session, cluster: Cluster) -> tuple[str, ...]:
    """Return the log groups that services write to, including those of stacks.

    HyperPod logs node setup in a group that belongs to no stack and never expires. The groups of CloudWatch's
    agent, EKS and Container Insights belong to a stack. EKS and Container Insights create theirs again for
    late entries when the stack is gone.
    """
    prefixes = [f"/aws/sagemaker/Clusters/{cluster.name}/"]
    # An existing EKS cluster keeps its own logs.
    if isinstance(cluster, EksCluster) and not cluster.kubernetes.existing:
        prefixes += [
            ResourceNames(cluster).control_plane_log_group,
            f"/aws/containerinsights/{cluster.name}/",
        ]
    logs = aws_client(session, "logs")
    return tuple(
        group["logGroupName"]
        for prefix in prefixes
        for group in all_items(logs, "describe_log_groups", "logGroups", logGroupNamePrefix=prefix)
    )


def describe_plan(plan: TeardownPlan) -> str:
    lines = ["Stacks to delete, in this order:"]
    lines += [f"  {stack.name} ({len(stack.resources)} resources)" for stack in plan.stacks] or [
        "  none"
    ]
    if plan.deleted:
        lines += ["", "Lost for good:"]
        for resource in plan.deleted:
            lines.append(f"  {resource.physical_id}: {HOLDS_DATA[resource.resource_type]}")
    if remains := describe_remains(plan):
        lines += ["", remains]
    return "\n".join(lines)


def describe_remains(plan: TeardownPlan) -> str:
    """List the resources that stay in the account and how to delete them; empty if nothing stays."""
    paragraphs = []
    if plan.kept or plan.service_logs:
        paragraphs.append("\n".join(_kept_lines(plan)))
    if plan.network_held:
        bill = network_bill(plan.network_held)
        network_lines = [
            f"Stack {plan.network_held.name} stays, because a network in use cannot be deleted: "
            f"{', '.join(plan.holders)} use it.",
            f"  It bills {bill}." if bill else "  It bills nothing.",
            "  Delete what holds it (above), then run `make teardown` again.",
        ]
        paragraphs.append("\n".join(network_lines))
    if plan.kubernetes_objects:
        object_lines = [
            "Kept in the EKS cluster, which existed before: volumes of the file system, and their claims.",
            "  When no job uses them any more:",
            *(f"      {command}" for command in plan.kubernetes_objects),
        ]
        paragraphs.append("\n".join(object_lines))
    return "\n\n".join(paragraphs)


def _kept_lines(plan: TeardownPlan) -> list[str]:
    def order(resource: StackResource) -> tuple[bool, bool]:
        # A link comes before its bucket, which must not be emptied while the link exists. Billed ones follow.
        return resource.resource_type != DATA_LINK, not bill_of(resource)

    lines = ["Kept in the account, outside of any stack:"]
    for resource in sorted(plan.kept, key=order):
        lines += _describe_kept(resource, plan)
    for name in plan.service_logs:
        lines.append(f"  {name}: a service's log, bills by the GB and month")
        lines.append(f"      aws logs delete-log-group --log-group-name {name}")
    return lines


def _describe_kept(resource: StackResource, plan: TeardownPlan) -> list[str]:
    kind = resource.resource_type.removeprefix("AWS::").replace("::", " ")
    lines = [f"  {resource.physical_id} ({kind}): {bill_of(resource) or 'bills nothing'}"]
    if field := _field_for(resource, plan):
        lines.append(f"      to use it again: {field}")
    if deletion := deletion_of(resource):
        lines.append(f"      {deletion}")
    return lines


def _field_for(resource: StackResource, plan: TeardownPlan) -> str:
    """Return the field of the cluster file with which a deployment uses a resource; empty without one."""
    name = resource.physical_id
    mount_names = plan.mount_names
    match resource.resource_type:
        case "AWS::FSx::FileSystem" if name in mount_names:
            # Without quotes, YAML reads a mount name such as 1e234567 as a number.
            mount_name = f'"{mount_names[name]}"'
            return f"storage.lustre.existing: {{file_system_id: {name}, mount_name: {mount_name}}}"
        case "AWS::FSx::FileSystem":
            return f"storage.home.existing: {name}"
        case "AWS::S3::Bucket" if resource.logical_id.startswith("Data"):
            return f"storage.data_bucket.existing: {name}"
        case "AWS::RDS::DBInstance" if resource.is_kept and name in plan.endpoints:
            return (
                f"accounting_database.existing: {{endpoint: {plan.endpoints[name]}, "
                f"secret_arn: {_kept_id(plan, 'AWS::SecretsManager::Secret')}, "
                f"security_group_id: {_kept_id(plan, 'AWS::EC2::SecurityGroup')}}}"
            )
        case "AWS::KMS::Key":
            return f"storage.kms: <ARN of key {name}>"
    return ""


def _kept_id(plan: TeardownPlan, resource_type: str) -> str:
    """Return the id of a kept part of the accounting database; null without one."""
    return next(
        (
            resource.physical_id
            for resource in plan.kept
            if resource.resource_type == resource_type
            and resource.logical_id.startswith("AccountingDatabase")
        ),
        "null",
    )


BILLS = {
    "AWS::FSx::FileSystem": "bills by the hour for {StorageCapacity:,} GiB and its throughput, used or not",
    "AWS::S3::Bucket": "bills by the GB and month for what is in it, versions too",
    "AWS::KMS::Key": "bills by the month",
    "AWS::SecretsManager::Secret": "bills by the month",
    "AWS::RDS::DBInstance": "still runs and bills by the hour as {DBInstanceClass}",
    "AWS::Logs::LogGroup": "bills by the GB and month",
    "AWS::APS::Workspace": "bills for stored samples",
    "AWS::ECR::Repository": "bills by the GB and month for its images",
}
"""Bill of a resource by its type, with properties in braces; other types are free."""
DELETIONS = {
    DATA_LINK: "before its bucket is emptied, or the files in the file system go as well: aws fsx"
    " delete-data-repository-association --association-id {0} --no-delete-data-in-file-system",
    "AWS::FSx::FileSystem": "aws fsx delete-file-system --file-system-id {0}",
    "AWS::S3::Bucket": "empty it (S3 console), then aws s3api delete-bucket --bucket {0}",
    "AWS::KMS::Key": "last of all: aws kms schedule-key-deletion --key-id {0}",
    "AWS::SecretsManager::Secret": "aws secretsmanager delete-secret --secret-id {0}",
    "AWS::RDS::DBInstance": "aws rds delete-db-instance --db-instance-identifier {0}"
    " --final-db-snapshot-identifier {0}-final",
    "AWS::RDS::DBSubnetGroup": "aws rds delete-db-subnet-group --db-subnet-group-name {0}",
    "AWS::RDS::DBParameterGroup": "aws rds delete-db-parameter-group --db-parameter-group-name {0}",
    "AWS::EC2::SecurityGroup": "aws ec2 delete-security-group --group-id {0}",
    "AWS::Logs::LogGroup": "aws logs delete-log-group --log-group-name {0}",
    "AWS::ECR::Repository": "aws ecr delete-repository --force --repository-name {0}",
    "AWS::APS::Workspace": "aws amp delete-workspace --workspace-id {1}",
}
"""Command that deletes a resource by its type, with its id, and the id's part after the last slash."""


def bill_of(resource: StackResource) -> str:
    """Describe how a resource is billed; empty if it is free."""
    if resource.leaves_snapshot:
        return "bills by the GB and month for the snapshot"
    properties = {"StorageCapacity": 0, "DBInstanceClass": None} | resource.properties
    return BILLS.get(resource.resource_type, "").format(**properties)


def deletion_of(resource: StackResource) -> str:
    """Return the command that deletes a resource; empty if none is needed."""
    if resource.leaves_snapshot:
        return "aws rds describe-db-snapshots, then aws rds delete-db-snapshot"
    resource_id = resource.physical_id
    return DELETIONS.get(resource.resource_type, "").format(
        resource_id, resource_id.rpartition("/")[2]
    )


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
    parts = [
        f"{number} {name}{'s' if number > 1 else ''}" for name, number in billed.items() if number
    ]
    return f"{' and '.join(parts)} by the hour, and their traffic" if parts else ""


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
    ec2 = aws_client(session, "ec2")
    found: set[str] = set()
    for direction in ("ip-permission.group-id", "egress.ip-permission.group-id"):
        filters = [{"Name": direction, "Values": sorted(own_groups)}]
        groups = all_items(ec2, "describe_security_groups", "SecurityGroups", Filters=filters)
        found.update(group["GroupId"] for group in groups)
    return found - own_groups


def _file_systems(session: boto3.Session, vpcs: set[str], own_groups: set[str]) -> list[str]:
    """Return the ids of file systems in these VPCs or, without VPCs, with these security groups."""
    if vpcs:
        filters = [{"Name": "vpc-id", "Values": sorted(vpcs)}]
    elif own_groups:
        filters = [{"Name": "group-id", "Values": sorted(own_groups)}]
    else:
        return []
    ec2 = aws_client(session, "ec2")
    found = all_items(ec2, "describe_network_interfaces", "NetworkInterfaces", Filters=filters)
    interfaces = {interface["NetworkInterfaceId"] for interface in found}
    return [
        system["FileSystemId"]
        for system in all_items(aws_client(session, "fsx"), "describe_file_systems", "FileSystems")
        if interfaces & set(system.get("NetworkInterfaceIds", []))
    ]


def _databases(session: boto3.Session, vpcs: set[str], groups: set[str]) -> list[str]:
    """Return the ids of databases in these VPCs, or with one of these security groups."""
    found = []
    for database in all_items(aws_client(session, "rds"), "describe_db_instances", "DBInstances"):
        vpc = database.get("DBSubnetGroup", {}).get("VpcId")
        own_groups = {
            member["VpcSecurityGroupId"] for member in database.get("VpcSecurityGroups", [])
        }
        if vpc in vpcs or groups & own_groups:
            found.append(database["DBInstanceIdentifier"])
    return found
