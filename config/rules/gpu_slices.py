"""Rules for groups whose GPUs are divided into slices (NVIDIA MIG)."""

from collections.abc import Iterator

from config.eks_cluster import EksCluster, EksInstanceGroup
from config.facts.gpu_slices import CONFIG_LABEL, SLICED_TYPES, slices_of
from config.facts.instance_catalogue import INSTANCE_TYPES
from config.reading.violation import Violation, key_path
from config.rules.rule import EksGroupRule, group_path, group_violation

_MOST_LABELS = 50
"""Most labels of a group in SageMaker's API (``ClusterKubernetesLabels``)."""


def gpus_offer_the_profile(cluster: EksCluster) -> Iterator[Violation]:
    for group in _divided(cluster):
        name = group.instance_type
        if name is None or name not in INSTANCE_TYPES:
            continue  # several types, or a wrong one, which other rules report
        profiles = slices_of(name)
        if not profiles:
            yield group_violation(
                group,
                "mig_profile",
                f"{name} has no GPUs that HyperPod divides; {', '.join(SLICED_TYPES)} have",
                "remove it, or set another instance_type",
            )
        elif group.mig_profile not in profiles:
            yield group_violation(
                group,
                "mig_profile",
                f"the GPUs of {name} have the profiles {', '.join(profiles)}",
                "set one of these",
            )


def label_is_free(cluster: EksCluster) -> Iterator[Violation]:
    for group in _divided(cluster):
        if CONFIG_LABEL in group.labels:
            yield Violation(
                key_path(group_path(group, "labels"), CONFIG_LABEL),
                group.labels[CONFIG_LABEL],
                f"mig_profile: {group.mig_profile} sets this label, too",
                "remove the label; for a layout of your own, remove mig_profile",
            )


def label_has_room(cluster: EksCluster) -> Iterator[Violation]:
    for group in _divided(cluster):
        if len(group.labels) >= _MOST_LABELS:
            yield Violation(
                group_path(group, "labels"),
                f"{len(group.labels)} labels",
                f"the label of mig_profile is one of the {_MOST_LABELS} that SageMaker accepts",
                "remove a label",
            )


def _divided(cluster: EksCluster) -> list[EksInstanceGroup]:
    return [group for group in cluster.instance_groups if group.mig_profile is not None]


RULES = (
    # SageMaker developer guide, "Using GPU partitions in Amazon SageMaker HyperPod": not supported with
    # InstanceRequirements.
    EksGroupRule(
        "mig_profile",
        lambda cluster, group: group.mig_profile is not None and group.instance_types,
        "HyperPod divides only GPUs of groups with one instance_type",
        "remove it, or set instance_type in place of instance_types",
    ),
    # mig-manager would end with an error, and the node would keep the state failed.
    gpus_offer_the_profile,
    # Two sources of one label would contradict each other after a change of either.
    label_is_free,
    # The file would be valid, and CreateCluster would refuse it after minutes.
    label_has_room,
)
