"""Rules for EKS clusters: the control plane and its access, and nodes, storage and network.

Karpenter: SageMaker developer guide, "Autoscaling on SageMaker HyperPod EKS", "Create a NodeClass".
"""

import re
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Network

from config.cluster import (
    ZONES_WITHOUT_CONTROL_PLANE,
    NewVpc,
    control_plane_zones,
    existing_security_groups,
    zone_ids,
)
from config.eks_cluster import EksCluster, lasting_groups, scaled_groups
from config.facts.regions import HEALTH_MONITORING_REGIONS
from config.reading.violation import Violation, key_path
from config.rules.network import parsed
from config.rules.rule import (
    EksGroupRule,
    EksRule,
    group_path,
    has_closed_network,
    is_outside,
    repetitions,
)
from config.stack_division import MAX_RESOURCES, division, most_entries, most_own_entries
from config.task_governance import MAX_NAME, team_namespace
from config.text_forms import LABEL_KEY, TEAM_NAME

SETTINGS_OF_A_NEW_CONTROL_PLANE = (
    "version",
    "endpoint",
    "public_access_cidrs",
    "control_plane_logs",
    "control_plane_log_days",
    "role",
)
"""Fields of ``kubernetes`` that describe the control plane itself."""
_PATH = "kubernetes.public_access_cidrs"
_EXAMPLE = "203.0.113.0/24"
"""Range reserved for examples (RFC 5737); example files with it are valid."""
_MAX_DOMAIN = 253
"""Most characters of a DNS name before a key's slash (Kubernetes documentation, "Labels and Selectors")."""
_MOST_LISTED = 20
"""Most namespaces that a message lists."""
MAX_SCALED_GROUPS = 10
"""Most groups per Karpenter NodeClass."""
_RESERVED_DOMAINS = ("kubernetes.io", "k8s.io", "k8s.aws", "amazonaws.com")
"""Domains of Kubernetes, and domains that HyperPod and EKS set themselves."""


def control_plane_has_two_zones(cluster: EksCluster) -> Iterator[Violation]:
    if cluster.kubernetes.existing or len(control_plane_zones(cluster)) >= 2:
        return
    zones = list(dict.fromkeys(zone_ids(cluster)))
    got = f"zones {', '.join(zones)}" if len(zones) > 1 else f"{zones[0]} only"
    allowed = "EKS's control plane needs two zones"
    if any(zone in ZONES_WITHOUT_CONTROL_PLANE for zone in zones):
        allowed += f", and is never in {', '.join(sorted(ZONES_WITHOUT_CONTROL_PLANE))}"
    yield Violation("network", got, allowed, "add a zone to the network; nodes stay in the first")


def existing_control_plane_keeps_its_settings(cluster: EksCluster) -> Iterator[Violation]:
    kubernetes = cluster.kubernetes
    if kubernetes.existing is None:
        return
    for name in SETTINGS_OF_A_NEW_CONTROL_PLANE:
        if name in kubernetes.model_fields_set:
            yield Violation(
                f"kubernetes.{name}",
                getattr(kubernetes, name),
                f"EKS cluster {kubernetes.existing} exists already, and the stacks change nothing of it",
                "remove it, or kubernetes.existing",
            )


def public_ranges_are_public(cluster: EksCluster) -> Iterator[Violation]:
    """Require public ranges. EKS rejects reserved ranges, and those of the VPC reach the endpoint anyway."""
    for index, cidr in enumerate(cluster.kubernetes.public_access_cidrs):
        wrong = partial(Violation, f"{_PATH}[{index}]", cidr)
        network = parsed(cidr, strict=False)
        if network is None:
            yield wrong(
                "an IPv4 range with numbers up to 255 and a prefix up to /32 is allowed",
                f"set one, for example {_EXAMPLE}",
            )
        elif network == IPv4Network("0.0.0.0/0"):
            yield wrong(
                "this is the whole internet, so anyone could try to reach the API server",
                f"set your own public ranges, such as {_EXAMPLE}",
            )
        elif str(network) != cidr:
            yield wrong("a range begins at its first address", f"set {network}")
        elif not network.is_global and not network.subnet_of(IPv4Network(_EXAMPLE)):
            yield wrong(
                "a public range is allowed; private addresses reach the endpoint only through the VPC",
                "set your own public range, or remove it",
            )


def principals_are_distinct(cluster: EksCluster) -> Iterator[Violation]:
    """Require one entry per ARN (EKS API reference, CreateAccessEntry)."""
    principals = [entry.principal_arn for entry in cluster.kubernetes.access]
    earlier = "EKS accepts one entry per role or user, and an earlier entry has this one"
    yield from repetitions(
        "kubernetes.access", principals, earlier, "merge the two", key=".principal_arn"
    )


def levels_apply_to_namespaces(cluster: EksCluster) -> Iterator[Violation]:
    for index, entry in enumerate(cluster.kubernetes.access):
        if not entry.namespaces:
            continue
        wrong = partial(Violation, f"kubernetes.access[{index}].namespaces", entry.namespaces)
        if entry.level == "cluster_admin":
            yield wrong(
                "cluster_admin applies to all namespaces", "remove them, or set level to admin"
            )
        elif not entry.has_access:
            yield wrong(
                f"{entry.level} gives no access to any namespace",
                "remove them, or set another level",
            )


def namespaces_of_teams_exist(cluster: EksCluster) -> Iterator[Violation]:
    """Check that each team namespace belongs to a team: task governance creates no others."""
    teams = [team.name for team in cluster.teams]
    if not all(re.search(TEAM_NAME.pattern, team) and len(team) <= MAX_NAME for team in teams):
        return  # the mistake is in the team's name
    prefix = team_namespace("")
    there = dict.fromkeys(team_namespace(team) for team in teams)
    listed = ", ".join([*there][:_MOST_LISTED])
    if len(there) > _MOST_LISTED:
        listed += f" and {len(there) - _MOST_LISTED} more"
    for index, entry in enumerate(cluster.kubernetes.access):
        # The namespaces of an entry without access are themselves the mistake.
        for position, namespace in enumerate(entry.namespaces if entry.has_access else []):
            if namespace.startswith(prefix) and namespace not in there:
                yield Violation(
                    f"kubernetes.access[{index}].namespaces[{position}]",
                    namespace,
                    f"namespaces of teams are {listed}" if there else "there are no teams",
                    "add the team to task_governance.teams, or remove the namespace",
                )


def stacks_hold_the_entries(cluster: EksCluster) -> Iterator[Violation]:
    entries = cluster.kubernetes.access
    most = most_entries(cluster.kubernetes)
    if len(entries) > most:
        yield Violation(
            "kubernetes.access",
            f"{len(entries)} entries",
            f"{most} of these fit into the cluster's stacks, because CloudFormation accepts {MAX_RESOURCES}"
            " resources per stack",
            f"remove {len(entries) - most}, or give people a common role",
        )


def own_stack_holds_its_entries(cluster: EksCluster) -> Iterator[Violation]:
    parts = division(cluster)
    most = most_own_entries(parts)
    if len(parts.entries) > most:
        yield Violation(
            "kubernetes.entries_in_cluster_stack",
            cluster.kubernetes.entries_in_cluster_stack,
            f"at most {most} entries fit into the cluster's own stack beside {len(parts.teams)} teams,"
            f" because CloudFormation accepts {MAX_RESOURCES} resources per stack",
            f"set {most}; if the deployed stack has more entries, take access away from"
            f" {len(parts.entries) - most} (level: none)",
        )


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
            (group_path(group, f"taints[{index}].key"), taint.key)
            for index, taint in enumerate(group.taints)
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
            elif any(
                domain == taken or domain.endswith(f".{taken}") for taken in _RESERVED_DOMAINS
            ):
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
    # It would have no effect, and people would look for the role's uses in vain.
    EksRule(
        "autoscaling_role",
        lambda cluster: cluster.autoscaling_role and cluster.autoscaling == "none",
        "only Karpenter uses it, and autoscaling is none",
        "remove it, or set autoscaling to karpenter",
    ),
    # They would have no effect, so the file would describe another cluster than the one that exists.
    existing_control_plane_keeps_its_settings,
    # Nodes reach the control plane through its interfaces, which stay in its VPC for good (EKS user guide,
    # "View Amazon EKS networking requirements").
    EksRule(
        "network.vpc",
        lambda cluster: cluster.kubernetes.existing and isinstance(cluster.network, NewVpc),
        "EKS cluster {cluster.kubernetes.existing} has its interfaces in an existing VPC",
        "set vpc: existing with that VPC and its subnets",
    ),
    # The interfaces admit the members of the cluster's groups only, and the stacks change no existing group
    # (EKS user guide, "View Amazon EKS security group requirements for clusters").
    EksRule(
        "network.security_group_ids",
        lambda cluster: (
            cluster.kubernetes.existing
            and not isinstance(cluster.network, NewVpc)
            and not existing_security_groups(cluster)
        ),
        "the control plane of {cluster.kubernetes.existing} admits only members of its own groups",
        "set its group: `aws eks describe-cluster --name {cluster.kubernetes.existing} --query"
        " cluster.resourcesVpcConfig.clusterSecurityGroupId`",
    ),
    # CloudWatch's add-on observes all nodes of the EKS cluster, also those of others.
    EksRule(
        "container_insights",
        lambda cluster: cluster.kubernetes.existing and cluster.container_insights,
        "the stacks install no add-on in an existing EKS cluster",
        "remove it, and install the add-on amazon-cloudwatch-observability there",
    ),
    # EKS requires subnets of two zones (EKS user guide, "View Amazon EKS networking requirements").
    control_plane_has_two_zones,
    # Without ranges, EKS opens the endpoint to the whole internet.
    EksRule(
        _PATH,
        lambda cluster: (
            cluster.kubernetes.endpoint == "public_and_private"
            and not cluster.kubernetes.existing
            and not cluster.kubernetes.public_access_cidrs
        ),
        "a public endpoint requires address ranges",
        f"set your own, such as [{_EXAMPLE}], or set kubernetes.endpoint to private",
    ),
    # The ranges would have no effect, so the file would promise access that does not exist.
    EksRule(
        _PATH,
        lambda cluster: (
            cluster.kubernetes.endpoint == "private"
            and not cluster.kubernetes.existing
            and cluster.kubernetes.public_access_cidrs
        ),
        "a private endpoint is reachable only from the VPC",
        "remove them, or set kubernetes.endpoint to public_and_private",
    ),
    public_ranges_are_public,
    # A repetition has no effect. It is probably a misspelt name of another log.
    EksRule(
        "kubernetes.control_plane_logs",
        lambda cluster: len(set(kinds := cluster.kubernetes.control_plane_logs)) < len(kinds),
        "each kind is listed once",
        "remove the repetition",
    ),
    principals_are_distinct,
    # The policy's rights go beyond namespaces, so a narrower scope would not be what the file says.
    # Someone without access would seem to have it in these namespaces.
    levels_apply_to_namespaces,
    namespaces_of_teams_exist,
    # CloudFormation accepts 500 resources per stack, and the entries beyond would not be deployed.
    stacks_hold_the_entries,
    # The synthesis counts exactly, but takes longer and names resources, not the field.
    own_stack_holds_its_entries,
    # Without the agent, HyperPod replaces no faulty node, which is the point of running on it.
    EksRule(
        "region",
        lambda cluster: is_outside(cluster, HEALTH_MONITORING_REGIONS),
        "scheduler: eks requires HyperPod's health monitoring agent, which is available in"
        f" {', '.join(sorted(HEALTH_MONITORING_REGIONS))}",
        "choose one of these",
    ),
    # The kubelet refuses labels in another form, and the node would not join.
    label_keys_have_their_form,
    # The kubelet may not set labels of these domains (NodeRestriction), and the node would not join.
    keys_are_free,
    taints_are_distinct,
    # Nothing else is placed or started without CoreDNS, certificates, operators and controllers. In an
    # existing EKS cluster, the job that creates folders in Lustre needs a node of HyperPod.
    EksRule(
        "instance_groups",
        lambda cluster: not lasting_groups(cluster),
        "Kubernetes's own pods, such as CoreDNS and the operators, need one",
        "add one of ml.m5.2xlarge on demand, with num_instances: 1 and without NoSchedule or NoExecute",
        got="no group with permanent nodes that admit all pods",
    ),
    # Two sources of one image would contradict each other, and one would be ignored.
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
    # A schedule installs the newest release, whatever number the template has (CloudFormation schema).
    EksGroupRule(
        "scheduled_update",
        lambda _, group: group.image_release_version and group.scheduled_update,
        "an update replaces the image, and image_release_version requires {group.image_release_version}",
        "remove one of the two",
    ),
    # The file system would bill, while nothing mounts it: pods start with the image's own home.
    EksRule(
        "storage.home",
        lambda cluster: cluster.storage.home,
        "pods have no home directories; with scheduler: eks they use the Lustre file system",
        "remove it, and keep files below storage.lustre.mount_path",
    ),
    # The publishers' registries have no interface endpoints.
    EksRule(
        "kubernetes.images",
        lambda cluster: has_closed_network(cluster) and cluster.kubernetes.images == "internet",
        "nodes in a closed network (network.internet: none) get images of plugins, operators and collector"
        " only from the cluster's image repository",
        "set image_repository, and run `make mirror-downloads` before nodes start; or internet: nat",
    ),
    # SageMaker developer guide, "Autoscaling on SageMaker HyperPod EKS", prerequisites.
    EksRule(
        "continuous_provisioning",
        lambda cluster: cluster.autoscaling == "karpenter" and not cluster.continuous_provisioning,
        "Karpenter requests single nodes, which requires continuous provisioning",
        "set true, or autoscaling to none",
    ),
    # The same page: scaled groups have no other repair, and faulty nodes would stay.
    EksRule(
        "node_recovery",
        lambda cluster: cluster.autoscaling == "karpenter" and cluster.node_recovery == "none",
        "Karpenter leaves faulty nodes to HyperPod's automatic recovery",
        "set automatic, or autoscaling to none",
    ),
    # A folder takes memory only as far as jobs write to it.
    EksRule(
        "memory_states.percent",
        lambda cluster: (
            cluster.memory_states
            and cluster.memory_states.storage == "nodes"
            and cluster.memory_states.percent is not None
        ),
        "it applies only to HyperPod's managed tier, and memory_states.storage is nodes",
        "remove it, or set storage to managed",
    ),
    # Without a NodeClass nothing would start more nodes, and quotas would count them.
    EksGroupRule(
        "max_instances",
        lambda cluster, group: cluster.autoscaling == "none" and group.max_instances is not None,
        "it applies only to Karpenter, and autoscaling is none",
        "remove it, or set autoscaling to karpenter",
    ),
    # A NodeClass names at least one instance group (the page above).
    EksRule(
        "autoscaling",
        lambda cluster: cluster.autoscaling == "karpenter" and not scaled_groups(cluster),
        "Karpenter scales groups with max_instances, and no group has it",
        "set max_instances in a group, or autoscaling to none",
    ),
    # Limit of the NodeClass in the SageMaker developer guide, "Create a NodeClass".
    EksRule(
        "instance_groups",
        lambda cluster: (
            cluster.autoscaling == "karpenter" and len(scaled_groups(cluster)) > MAX_SCALED_GROUPS
        ),
        f"Karpenter scales at most {MAX_SCALED_GROUPS}",
        lambda cluster: (
            f"remove max_instances from {len(scaled_groups(cluster)) - MAX_SCALED_GROUPS}"
        ),
        got=lambda cluster: f"{len(scaled_groups(cluster))} groups with max_instances",
    ),
    # Nodes of the file would end when they are empty, and each deployment would start them again.
    EksGroupRule(
        "num_instances",
        lambda _, group: group.max_instances is not None and group.num_instances,
        "Karpenter starts with no nodes and would remove these",
        "set 0, or remove max_instances",
    ),
)
