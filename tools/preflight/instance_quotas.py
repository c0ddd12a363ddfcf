"""Checks of SageMaker's quotas for HyperPod: instances per type, all instances, and volume sizes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

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
            for instance_type, number in _numbers_by_type(group, size).items():
                count[instance_type, capacity] += number
    return count


def _numbers_by_type(group: dict[str, Any], size: int) -> Counter[str]:
    """Return the instances of each type in a described group; those still missing count as the first type."""
    # A group of several types has a list in place of an InstanceType.
    listed = group.get("InstanceRequirements", {}).get("DesiredInstanceTypes", [])
    first = group.get("InstanceType") or next(iter(listed), "unknown")
    details = group.get("InstanceTypeDetails", [])
    count: Counter[str] = Counter()
    for found in details:
        count[found["InstanceType"]] += found.get("CurrentCount", 0)
    count[first] += max(0, size - count.total())
    return count


def _instances_wanted(cluster: Cluster) -> Counter[TypeAndCapacity]:
    """Return the instances of each type; each type of a group counts with all nodes of the group."""
    count: Counter[TypeAndCapacity] = Counter()
    for group in cluster.instance_groups:
        for name in group.types:
            count[name, group.capacity] += group.num_instances
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
        for instance_type in group.types:
            at_most[instance_type, group.capacity] += max(0, additional)
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
    """Check the quota of each type. Training plans count too, because they do not raise the quota.

    A quota that is too small is a warning, if each of its groups has another type whose quota is not.
    """
    elsewhere = _instances_elsewhere(aws, cluster)
    found = {
        kind: _judge(aws, _quota_name(*kind), needed=needed, used=elsewhere[kind])
        for kind, needed in sorted(_instances_wanted(cluster).items())
    }
    sufficient = {kind for kind, finding in found.items() if finding.level != "FAIL"}
    for kind, finding in found.items():
        is_optional = all(
            any((name, group.capacity) in sufficient for name in group.types)
            for group in cluster.instance_groups
            if kind in {(name, group.capacity) for name in group.types}
        )
        if finding.level == "FAIL" and is_optional:
            yield replace(finding, level="WARN")
        else:
            yield finding


def check_instance_totals(aws: ReadOnlyAws, cluster: Cluster) -> Iterator[Finding]:
    wanted = sum(group.num_instances for group in cluster.instance_groups)
    elsewhere = _instances_elsewhere(aws, cluster)
    yield _judge(aws, PER_CLUSTER, needed=wanted, used=0)
    yield _judge(aws, ALL_CLUSTERS, needed=wanted, used=elsewhere.total())
    spot = sum(group.num_instances for group in cluster.instance_groups if group.capacity == "spot")
    if spot:
        spot_elsewhere = sum(
            number for (_, capacity), number in elsewhere.items() if capacity == "spot"
        )
        yield _judge(aws, ALL_SPOT, needed=spot, used=spot_elsewhere)


def _judge(aws: ReadOnlyAws, name: str, *, needed: int, used: int) -> Finding:
    return judge_quota(
        aws, Quota("sagemaker", SAGEMAKER, name), needed=needed, used=used, unit="instance(s)"
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
