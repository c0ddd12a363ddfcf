"""SageMaker's quotas for HyperPod: instances of each type, instances in all, size of volumes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from config.cluster import Cluster
from config.eks_cluster import EksCluster, EksInstanceGroup
from tools.preflight.finding import Finding, fail, ok, warn
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import judge, quotas_by_name

# Names as Service Quotas shows them (SageMaker AI developer guide, "SageMaker HyperPod quotas").
PER_CLUSTER = "Maximum number instances allowed per SageMaker HyperPod cluster"
ALL_CLUSTERS = "Total number of instances allowed across SageMaker HyperPod clusters"
ALL_SPOT = "Total number of Spot instances allowed across SageMaker HyperPod clusters"
VOLUME_SIZE = "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance"
SERVICE = "Amazon SageMaker AI"

TypeAndCapacity = tuple[str, str]
"""("ml.g5.8xlarge", "on_demand" or "spot")."""


def _quota_name(instance_type: str, capacity: str) -> str:
    return f"{instance_type} for cluster {'spot instance ' if capacity == 'spot' else ''}usage"


def _instances_elsewhere(aws: ReadOnlyAws, cluster: Cluster) -> Counter[TypeAndCapacity]:
    """Instances of the account's other HyperPod clusters: quotas count them all together."""
    count: Counter[TypeAndCapacity] = Counter()
    for summary in aws.items("sagemaker", "list_clusters", "ClusterSummaries"):
        if summary["ClusterName"] == cluster.name:
            continue
        described = aws.call("sagemaker", "describe_cluster", ClusterName=summary["ClusterName"])
        for group in described["InstanceGroups"]:
            capacity = "spot" if "Spot" in group.get("CapacityRequirements", {}) else "on_demand"
            size = max(group.get("CurrentCount", 0), group.get("TargetCount", 0))
            # A group of several types lists them without a single InstanceType; its first is taken.
            types = group.get("InstanceRequirements", {}).get("DesiredInstanceTypes", [])
            instance_type = group.get("InstanceType") or (types[0] if types else "unknown")
            count[instance_type, capacity] += size
    return count


def _instances_wanted(cluster: Cluster) -> Counter[TypeAndCapacity]:
    count: Counter[TypeAndCapacity] = Counter()
    for group in cluster.instance_groups:
        count[group.instance_type, group.capacity] += group.num_instances
    return count


def _instances_at_most(cluster: Cluster) -> Counter[TypeAndCapacity]:
    """With all the nodes that Karpenter may add."""
    count = _instances_wanted(cluster)
    for group in cluster.instance_groups:
        if isinstance(group, EksInstanceGroup) and group.max_instances:
            count[group.instance_type, group.capacity] += max(0, group.max_instances - group.num_instances)
    return count


def check_karpenter(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """A warning, as the cluster is deployed without these nodes."""
    if cluster.autoscaling == "none":
        return
    quotas = quotas_by_name(aws, "sagemaker")
    wanted, elsewhere = _instances_wanted(cluster), _instances_elsewhere(aws, cluster)
    for kind, most in sorted(_instances_at_most(cluster).items()):
        name, used = _quota_name(*kind), elsewhere[kind]
        value = quotas.get(name)
        if value is not None and most > wanted[kind] and used + most > value:
            yield warn(
                f"quota {name}",
                f"Karpenter may ask for {most:,} instances, {used:,} are in use, the quota is {value:,.10g}",
                f"request {used + most:,} for '{name}' in Service Quotas, {SERVICE}, or set max_instances "
                "lower; pods wait for nodes that the quota does not allow",
            )


def check_instance_types(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Training plans count too: they reserve capacity, they do not raise the quota."""
    quotas = quotas_by_name(aws, "sagemaker")
    elsewhere = _instances_elsewhere(aws, cluster)
    for (instance_type, capacity), needed in sorted(_instances_wanted(cluster).items()):
        name = _quota_name(instance_type, capacity)
        yield _judge(quotas, name, needed=needed, used=elsewhere[instance_type, capacity])


def check_instance_totals(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    quotas = quotas_by_name(aws, "sagemaker")
    wanted, elsewhere = _instances_wanted(cluster), _instances_elsewhere(aws, cluster)
    totals = [
        (PER_CLUSTER, wanted.total(), 0),
        (ALL_CLUSTERS, wanted.total(), elsewhere.total()),
    ]
    spot = sum(number for (_, capacity), number in wanted.items() if capacity == "spot")
    if spot:
        spot_elsewhere = sum(number for (_, capacity), number in elsewhere.items() if capacity == "spot")
        totals.append((ALL_SPOT, spot, spot_elsewhere))
    for name, needed, used in totals:
        yield _judge(quotas, name, needed=needed, used=used)


def _judge(quotas: Mapping[str, float], name: str, *, needed: int, used: int) -> Finding:
    return judge(
        quota_name=name,
        service=SERVICE,
        value=quotas.get(name),
        needed=needed,
        used=used,
        unit="instances",
    )


def check_volume_size(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    largest_gib = max(group.ebs_gib or 0 for group in cluster.instance_groups)
    if not largest_gib:
        return
    value = quotas_by_name(aws, "sagemaker").get(VOLUME_SIZE)
    subject = "quota EBS volume of a node"
    if value is not None and largest_gib > value:
        yield fail(
            subject,
            f"{largest_gib:,} GiB asked for, the quota is {value:,.0f}",
            f"set ebs_gib to {value:,.0f} or less, or request {largest_gib:,} for '{VOLUME_SIZE}'",
        )
    elif value is not None:
        yield ok(subject, f"{largest_gib:,} GiB asked for, the quota is {value:,.0f}")
