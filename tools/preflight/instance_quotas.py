"""Checks of SageMaker's quotas for HyperPod: instances per type, all instances, and volume sizes."""

from collections import Counter
from collections.abc import Iterator

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.service_quotas import SAGEMAKER, Quota, judge_quota, quotas_by_name

# Names in Service Quotas (SageMaker AI developer guide, "SageMaker HyperPod quotas").
PER_CLUSTER = "Maximum number instances allowed per SageMaker HyperPod cluster"
ALL_CLUSTERS = "Total number of instances allowed across SageMaker HyperPod clusters"
ALL_SPOT = "Total number of Spot instances allowed across SageMaker HyperPod clusters"
VOLUME_SIZE = "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance"

TypeAndCapacity = tuple[str, str]
"""Instance type and capacity, for example ("ml.g5.8xlarge", "on_demand"); the other capacity is "spot"."""


def _quota_name(instance_type: str, capacity: str) -> str:
    return f"{instance_type} for cluster {'spot instance ' if capacity == 'spot' else ''}usage"


def _instances_elsewhere(aws: ReadOnlyAws, cluster: Cluster) -> Counter[TypeAndCapacity]:
    """Return the instances of the account's other HyperPod clusters, which the quotas also count."""
    count: Counter[TypeAndCapacity] = Counter()
    for summary in aws.items("sagemaker", "list_clusters", "ClusterSummaries"):
        if summary["ClusterName"] == cluster.name:
            continue
        described = aws.call("sagemaker", "describe_cluster", ClusterName=summary["ClusterName"])
        for group in described["InstanceGroups"]:
            capacity = "spot" if "Spot" in group.get("CapacityRequirements", {}) else "on_demand"
            size = max(group.get("CurrentCount", 0), group.get("TargetCount", 0))
            # A group of several types has a list instead of an InstanceType; its first type counts.
            types = group.get("InstanceRequirements", {}).get("DesiredInstanceTypes", [])
            instance_type = group.get("InstanceType") or (types[0] if types else "unknown")
            count[instance_type, capacity] += size
    return count


def _instances_wanted(cluster: Cluster) -> Counter[TypeAndCapacity]:
    count: Counter[TypeAndCapacity] = Counter()
    for group in cluster.instance_groups:
        count[group.instance_type, group.capacity] += group.num_instances
    return count


def check_karpenter(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Warn if the quota limits Karpenter, because the cluster can be deployed without these nodes."""
    if cluster.autoscaling == "none":
        return
    quotas = quotas_by_name(aws, "sagemaker")
    wanted = _instances_wanted(cluster)
    elsewhere = _instances_elsewhere(aws, cluster)
    at_most = wanted.copy()
    for group in cluster.instance_groups:
        additional = (group.max_instances or 0) - group.num_instances
        at_most[group.instance_type, group.capacity] += max(0, additional)
    for kind, most in sorted(at_most.items()):
        name = _quota_name(*kind)
        used = elsewhere[kind]
        value = quotas.get(name)
        if value is not None and most > wanted[kind] and used + most > value:
            yield Subject(f"quota {name}").warn(
                f"Karpenter may request {most:,} instances, {used:,} are in use, the quota is {value:,.10g}",
                f"request {used + most:,} for '{name}' in Service Quotas, {SAGEMAKER}, or set max_instances "
                "lower; pods wait for nodes that the quota does not allow",
            )


def check_instance_types(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    """Check the quota of each type. Training plans count too, because they do not raise the quota."""
    elsewhere = _instances_elsewhere(aws, cluster)
    for kind, needed in sorted(_instances_wanted(cluster).items()):
        yield _judge(aws, _quota_name(*kind), needed=needed, used=elsewhere[kind])


def check_instance_totals(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    wanted = _instances_wanted(cluster)
    elsewhere = _instances_elsewhere(aws, cluster)
    yield _judge(aws, PER_CLUSTER, needed=wanted.total(), used=0)
    yield _judge(aws, ALL_CLUSTERS, needed=wanted.total(), used=elsewhere.total())
    spot = _num_spot(wanted)
    if spot:
        yield _judge(aws, ALL_SPOT, needed=spot, used=_num_spot(elsewhere))


def _num_spot(count: Counter[TypeAndCapacity]) -> int:
    return sum(number for (_, capacity), number in count.items() if capacity == "spot")


def _judge(aws: ReadOnlyAws, name: str, *, needed: int, used: int) -> Finding:
    return judge_quota(
        aws, Quota("sagemaker", SAGEMAKER, name), needed=needed, used=used, unit="instances"
    )


def check_volume_size(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    largest_gib = max(group.ebs_gib or 0 for group in cluster.instance_groups)
    if not largest_gib:
        return
    value = quotas_by_name(aws, "sagemaker").get(VOLUME_SIZE)
    subject = Subject("quota EBS volume of a node")
    if value is not None and largest_gib > value:
        yield subject.fail(
            f"{largest_gib:,} GiB requested, the quota is {value:,.0f}",
            f"set ebs_gib to {value:,.0f} or less, or request {largest_gib:,} for '{VOLUME_SIZE}'",
        )
    elif value is not None:
        yield subject.ok(f"{largest_gib:,} GiB requested, the quota is {value:,.0f}")
