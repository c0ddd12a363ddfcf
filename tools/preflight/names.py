"""Checks that names for the deployment are free or already belong to this cluster."""

from collections.abc import Iterator

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.resource_names import ResourceNames, artifact_bucket
from config.slurm_cluster import SlurmCluster
from tools.preflight.finding import Finding, Subject
from tools.preflight.planned import Planned
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import Stack, is_deployed

DELETE_CLUSTER = "change `name`, or delete that cluster if it is no longer needed"


def _judge(
    aws: ReadOnlyAws, cluster: Cluster, name: str, found: object, stack: Stack, action: str
) -> Finding:
    """Judge whether a name is free.

    Args:
        aws: reader of the account.
        cluster: cluster file.
        name: kind and name of the resource.
        found: resource that has the name; None if it is free.
        stack: stack that has this cluster's own resource.
        action: action to take if another resource has the name.
    """
    subject = Subject(name)
    if found is None:
        return subject.ok("free")
    if is_deployed(aws, cluster, stack):
        return subject.ok("this cluster's own")
    return subject.fail("taken, and not by this cluster's stacks", action)


def check_cluster_name(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    found = aws.find("sagemaker", "describe_cluster", ClusterName=cluster.name)
    yield _judge(aws, cluster, f"name of cluster {cluster.name}", found, "hyperpod", DELETE_CLUSTER)


def check_bucket(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check the bucket with a fixed name, which a teardown may have retained."""
    bucket = artifact_bucket(cluster, aws.account)
    found = aws.find("s3", "head_bucket", Bucket=bucket)
    action = (
        "an earlier cluster with this name left it: inspect it, then change `name`, or delete it with all "
        "versions (S3 console: Empty, then Delete)"
    )
    yield _judge(aws, cluster, f"bucket {bucket}", found, "storage", action)


def check_repository(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    name = ResourceNames(cluster).image_repository
    found = aws.find("ecr", "describe_repositories", repositoryNames=[name])
    action = "change `name`; or inspect its images and delete it if they are no longer needed"
    yield _judge(aws, cluster, f"image repository {name}", found, "storage", action)


def check_document(aws: ReadOnlyAws, cluster: SlurmCluster) -> Iterator[Finding]:
    name = ResourceNames(cluster).shell_document
    found = aws.find("ssm", "describe_document", Name=name)
    action = f"change `name`, or `aws ssm delete-document --name {name}`"
    yield _judge(aws, cluster, f"SSM document {name}", found, "hyperpod", action)


def check_kubernetes_cluster(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    if cluster.kubernetes.existing:
        return
    name = ResourceNames(cluster).kubernetes_cluster
    found = aws.find("eks", "describe_cluster", name=name)
    yield _judge(aws, cluster, f"name of EKS cluster {name}", found, "hyperpod", DELETE_CLUSTER)


def check_log_groups(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    names = ResourceNames(cluster)
    yield _log_group(aws, cluster, names.lustre_log_group, "storage")
    if cluster.prometheus:
        yield _log_group(aws, cluster, names.metrics_log_group, "storage")
    if isinstance(cluster, SlurmCluster):
        yield _log_group(aws, cluster, names.node_log_group, "hyperpod")


def check_planned_log_groups(
    planned: Planned, aws: ReadOnlyAws, cluster: EksCluster
) -> Iterator[Finding]:
    """Check log groups that EKS and agents may have created for an earlier cluster."""
    for name in planned.log_groups:
        yield _log_group(aws, cluster, name, "hyperpod")


def _log_group(aws: ReadOnlyAws, cluster: Cluster, name: str, stack: Stack) -> Finding:
    groups = aws.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=name)
    found = next((group for group in groups if group["logGroupName"] == name), None)
    action = f"`aws logs delete-log-group --log-group-name {name}`"
    return _judge(aws, cluster, f"log group {name}", found, stack, action)


def check_key_alias(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    if cluster.storage.kms != "create":
        return
    name = ResourceNames(cluster).key_alias
    aliases = aws.items("kms", "list_aliases", "Aliases")
    found = next((alias for alias in aliases if alias["AliasName"] == name), None)
    action = (
        "the key may still be needed to read what it encrypted; "
        f"`aws kms delete-alias --alias-name {name}` frees the name and leaves the key"
    )
    yield _judge(aws, cluster, f"KMS {name}", found, "storage", action)
