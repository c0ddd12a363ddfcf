"""Requirements of Kubernetes, its pods and Karpenter for nodes, storage and network.

Karpenter: SageMaker developer guide, "Autoscaling on SageMaker HyperPod EKS", "Create a NodeClass".
"""

import re
from collections.abc import Iterator

from config.eks_cluster import EksCluster, lasting_groups, scaled_groups
from config.facts.regions import HEALTH_MONITORING_REGIONS
from config.reading.violation import Violation, key_path
from config.rules.rule import EksGroupRule, EksRule, group_path, has_closed_network, is_outside
from config.text_forms import LABEL_KEY

_MAX_DOMAIN = 253
"""Most characters of a DNS name before a key's slash (Kubernetes documentation, "Labels and Selectors")."""
MAX_SCALED_GROUPS = 10
"""Most groups per Karpenter NodeClass."""
# Domains of Kubernetes, and domains that HyperPod and EKS set themselves.
_RESERVED_DOMAINS = ("kubernetes.io", "k8s.io", "k8s.aws", "amazonaws.com")


def label_keys_have_their_form(cluster: EksCluster) -> Iterator[Violation]:
    for group in cluster.instance_groups:
        for key, value in group.labels.items():
            if not re.search(LABEL_KEY.pattern, key):
                yield Violation(
                    key_path(group_path(group, "labels"), key),
                    value,
                    LABEL_KEY.meaning,
                    f"set a key in this form, for example {LABEL_KEY.examples[0]}",
                )


def keys_are_free(cluster: EksCluster) -> Iterator[Violation]:
    for group in cluster.instance_groups:
        labels = [(key_path(group_path(group, "labels"), key), key) for key in group.labels]
        taints = [
            (group_path(group, f"taints[{index}].key"), taint.key) for index, taint in enumerate(group.taints)
        ]
        for path, key in labels + taints:
            domain = key.rpartition("/")[0]
            if len(domain) > _MAX_DOMAIN:
                yield Violation(
                    path,
                    f"a domain of {len(domain)} characters",
                    f"{_MAX_DOMAIN} or fewer are allowed before the slash",
                    "set a shorter one",
                )
            elif any(domain == taken or domain.endswith(f".{taken}") for taken in _RESERVED_DOMAINS):
                yield Violation(
                    path,
                    key,
                    f"Kubernetes and AWS reserve keys of {', '.join(_RESERVED_DOMAINS)}",
                    "set a domain of your own, or none",
                )


def taints_are_distinct(cluster: EksCluster) -> Iterator[Violation]:
    """Require distinct pairs of key and effect, because Kubernetes rejects duplicates on a node."""
    for group in cluster.instance_groups:
        seen = set()
        for index, taint in enumerate(group.taints):
            if (taint.key, taint.effect) in seen:
                yield Violation(
                    group_path(group, f"taints[{index}].key"),
                    taint.key,
                    f"an earlier taint has that key and {taint.effect}",
                    "remove one of the two",
                )
            seen.add((taint.key, taint.effect))


RULES = (
    EksRule(
        "region",
        lambda cluster: is_outside(cluster, HEALTH_MONITORING_REGIONS),
        "scheduler: eks requires HyperPod's health monitoring agent, which is available in"
        f" {', '.join(sorted(HEALTH_MONITORING_REGIONS))}",
        "choose one of these",
    ),
    label_keys_have_their_form,
    keys_are_free,
    taints_are_distinct,
    # Nothing else is placed or started without CoreDNS, certificates, operators and controllers.
    EksRule(
        "instance_groups",
        lambda cluster: not lasting_groups(cluster),
        "Kubernetes's own pods, such as CoreDNS and the operators, need one",
        "add one of ml.m5.2xlarge on demand, with num_instances: 1 and without NoSchedule or NoExecute",
        got="no group with permanent nodes that admit all pods",
    ),
    EksGroupRule(
        "image_release_version",
        lambda _, group: group.image_release_version and group.image_id,
        "image_id already sets the image {group.image_id}",
        "remove one of the two",
    ),
    # Patches ignore it (CloudFormation schema of AWS::SageMaker::Cluster, ``ImageReleaseVersion``).
    EksGroupRule(
        "auto_patch",
        lambda _, group: group.image_release_version and group.auto_patch != "none",
        "patching replaces the image, and image_release_version requires {group.image_release_version}",
        "set none, or remove image_release_version",
    ),
    EksRule(
        "storage.home",
        lambda cluster: cluster.storage.home,
        "pods have no home directories; with scheduler: eks they use the Lustre file system",
        "remove it, and keep files below storage.lustre.mount_path",
    ),
    # Images of operators and plugins are in registries without interface endpoints.
    EksRule(
        "network.internet",
        has_closed_network,
        "with scheduler: eks nodes pull images of operators and plugins from registries on the internet",
        "set nat",
    ),
    EksRule(
        "continuous_provisioning",
        lambda cluster: cluster.autoscaling == "karpenter" and not cluster.continuous_provisioning,
        "Karpenter requests single nodes, which requires continuous provisioning",
        "set true, or autoscaling to none",
    ),
    EksRule(
        "node_recovery",
        lambda cluster: cluster.autoscaling == "karpenter" and cluster.node_recovery == "none",
        "Karpenter leaves faulty nodes to HyperPod's automatic recovery",
        "set automatic, or autoscaling to none",
    ),
    EksGroupRule(
        "max_instances",
        lambda cluster, group: cluster.autoscaling == "none" and group.max_instances is not None,
        "it applies only to Karpenter, and autoscaling is none",
        "remove it, or set autoscaling to karpenter",
    ),
    EksRule(
        "autoscaling",
        lambda cluster: cluster.autoscaling == "karpenter" and not scaled_groups(cluster),
        "Karpenter scales groups with max_instances, and no group has it",
        "set max_instances in a group, or autoscaling to none",
    ),
    EksRule(
        "instance_groups",
        lambda cluster: (
            cluster.autoscaling == "karpenter" and len(scaled_groups(cluster)) > MAX_SCALED_GROUPS
        ),
        f"Karpenter scales at most {MAX_SCALED_GROUPS}",
        lambda cluster: f"remove max_instances from {len(scaled_groups(cluster)) - MAX_SCALED_GROUPS}",
        got=lambda cluster: f"{len(scaled_groups(cluster))} groups with max_instances",
    ),
    EksGroupRule(
        "num_instances",
        lambda _, group: group.max_instances is not None and group.num_instances,
        "Karpenter starts with no nodes and would remove these",
        "set 0, or remove max_instances",
    ),
)
