"""What the AWS services around the cluster do not accept."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config.address_demand import zone_ids
from config.cluster import SlurmCluster
from config.violation import Violation

MAX_TAGS = 40
"""AWS takes 50 on a resource; the rest is for the tags that the stacks and the CDK add."""
OUR_TAGS = ("project", "hyperpod-cluster", "Name")

# "Tag naming limits and requirements" (AWS tagging user guide): lengths in characters, and these characters.
_MAX_KEY, _MAX_VALUE = 128, 256
_TAG_TEXT = re.compile(r"[\w\s.:/=+\-@]*")


def name_is_not_reserved(cluster: SlurmCluster) -> Iterator[Violation]:
    """The cluster has an SSM document of its name; SSM's CreateDocument reserves these beginnings."""
    for prefix in ("aws", "amazon", "amzn"):
        if cluster.name.startswith(prefix):
            yield Violation(
                "name",
                cluster.name,
                "AWS keeps names that begin with aws, amazon or amzn to itself",
                "set a name with another beginning, as esm2",
            )


def tags_are_acceptable(cluster: SlurmCluster) -> Iterator[Violation]:
    if len(cluster.tags) > MAX_TAGS:
        yield Violation(
            "tags",
            f"{len(cluster.tags)} tags",
            f"at most {MAX_TAGS} are allowed: AWS takes 50 on a resource, and the stacks add their own",
            f"remove {len(cluster.tags) - MAX_TAGS}",
        )
    for key, value in cluster.tags.items():
        path = f"tags.{key}"
        if key.lower().startswith("aws:"):
            yield Violation(
                path,
                value,
                "AWS keeps keys that begin with aws: to itself",
                "set another key",
            )
        if key in OUR_TAGS:
            yield Violation(path, value, "the stacks set this tag themselves", "remove it or set another key")
        if not 1 <= len(key) <= _MAX_KEY:
            yield Violation(
                path, f"a key of {len(key)} characters", f"1 to {_MAX_KEY} are allowed", "set a shorter key"
            )
        if len(value) > _MAX_VALUE:
            yield Violation(
                path,
                f"a value of {len(value)} characters",
                f"at most {_MAX_VALUE} are allowed",
                "set a shorter value",
            )
        if not (_TAG_TEXT.fullmatch(key) and _TAG_TEXT.fullmatch(value)):
            yield Violation(
                path,
                value,
                "letters, digits, spaces and _ . : / = + - @ are allowed",
                "set key and value of these characters",
            )


def database_has_two_zones(cluster: SlurmCluster) -> Iterator[Violation]:
    """An RDS subnet group spans at least two zones, whether the instance does or not."""
    zones = set(zone_ids(cluster))
    if cluster.accounting_database and len(zones) < 2:
        yield Violation(
            "accounting_database",
            f"a network in {next(iter(zones))} only",
            "a database needs subnets in two zones",
            "add a second zone to the network, or remove accounting_database",
        )


def database_needs_continuous_provisioning(cluster: SlurmCluster) -> Iterator[Violation]:
    """API reference of CreateCluster, ``AccountingDatabase``."""
    if cluster.accounting_database and not cluster.continuous_provisioning:
        yield Violation(
            "continuous_provisioning",
            False,
            "HyperPod takes an accounting database only with continuous provisioning",
            "set true, or remove accounting_database",
        )


RULES = (
    name_is_not_reserved,
    tags_are_acceptable,
    database_has_two_zones,
    database_needs_continuous_provisioning,
)
