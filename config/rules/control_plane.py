"""Rules for the EKS control plane: its network, public access and access entries."""

import re
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Network

from config.cluster import ZONES_WITHOUT_CONTROL_PLANE, control_plane_zones, zone_ids
from config.eks_cluster import EksCluster
from config.reading.violation import Violation
from config.rules.ranges import parsed
from config.rules.rule import EksRule, repetitions
from config.task_governance import MAX_NAME, team_namespace
from config.text_forms import TEAM_NAME

_PATH = "kubernetes.public_access_cidrs"
# Range reserved for examples (RFC 5737); example files with it are valid.
_EXAMPLE = "203.0.113.0/24"


def control_plane_has_two_zones(cluster: EksCluster) -> Iterator[Violation]:
    zones = list(dict.fromkeys(zone_ids(cluster)))
    if len(control_plane_zones(cluster)) < 2:
        without = [zone for zone in zones if zone in ZONES_WITHOUT_CONTROL_PLANE]
        yield Violation(
            "network",
            f"zones {', '.join(zones)}" if len(zones) > 1 else f"{zones[0]} only",
            "EKS's control plane needs two zones"
            + (f", and is never in {', '.join(sorted(ZONES_WITHOUT_CONTROL_PLANE))}" if without else ""),
            "add a zone to the network; nodes stay in the first",
        )


def public_ranges_are_public(cluster: EksCluster) -> Iterator[Violation]:
    """Require public ranges. EKS rejects reserved ranges, and those of the VPC reach the endpoint anyway."""
    for index, cidr in enumerate(cluster.kubernetes.public_access_cidrs):
        wrong, network = partial(Violation, f"{_PATH}[{index}]", cidr), parsed(cidr, strict=False)
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


_OF_TEAMS = team_namespace("")


def principals_are_distinct(cluster: EksCluster) -> Iterator[Violation]:
    """Require one entry per ARN (EKS API reference, CreateAccessEntry)."""
    principals = [entry.principal_arn for entry in cluster.kubernetes.access]
    earlier = "EKS accepts one entry per role or user, and an earlier entry has this one"
    yield from repetitions("kubernetes.access", principals, earlier, "merge the two", key=".principal_arn")


def administrators_have_no_namespaces(cluster: EksCluster) -> Iterator[Violation]:
    for index, entry in enumerate(cluster.kubernetes.access):
        if entry.level == "cluster_admin" and entry.namespaces:
            yield Violation(
                f"kubernetes.access[{index}].namespaces",
                entry.namespaces,
                "cluster_admin applies to all namespaces",
                "remove them, or set level to admin",
            )


def namespaces_of_teams_exist(cluster: EksCluster) -> Iterator[Violation]:
    """Check that each team namespace belongs to a team: task governance creates no others."""
    teams = [team.name for team in cluster.teams]
    if not all(re.search(TEAM_NAME.pattern, team) and len(team) <= MAX_NAME for team in teams):
        return  # the mistake is in the team's name
    there = [team_namespace(team) for team in teams]
    for index, entry in enumerate(cluster.kubernetes.access):
        for position, namespace in enumerate(entry.namespaces):
            if namespace.startswith(_OF_TEAMS) and namespace not in there:
                yield Violation(
                    f"kubernetes.access[{index}].namespaces[{position}]",
                    namespace,
                    f"namespaces of teams are {', '.join(there)}" if there else "there are no teams",
                    "add the team to task_governance.teams, or remove the namespace",
                )


RULES = (
    control_plane_has_two_zones,
    # Without ranges, EKS opens the endpoint to the whole internet.
    EksRule(
        _PATH,
        lambda cluster: (
            cluster.kubernetes.endpoint == "public_and_private" and not cluster.kubernetes.public_access_cidrs
        ),
        "a public endpoint requires address ranges",
        f"set your own, such as [{_EXAMPLE}], or set kubernetes.endpoint to private",
    ),
    EksRule(
        _PATH,
        lambda cluster: cluster.kubernetes.endpoint == "private" and cluster.kubernetes.public_access_cidrs,
        "a private endpoint is reachable only from the VPC",
        "remove them, or set kubernetes.endpoint to public_and_private",
    ),
    public_ranges_are_public,
    EksRule(
        "kubernetes.control_plane_logs",
        lambda cluster: len(set(kinds := cluster.kubernetes.control_plane_logs)) < len(kinds),
        "each kind is listed once",
        "remove the repetition",
    ),
    principals_are_distinct,
    administrators_have_no_namespaces,
    namespaces_of_teams_exist,
)
