"""What the AWS services around the cluster do not accept."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import Cluster
from config.violation import Violation


def name_is_not_reserved(cluster: Cluster) -> Iterator[Violation]:
    """The cluster has an SSM document of its name; SSM's CreateDocument reserves these beginnings."""
    for prefix in ("aws", "amazon", "amzn"):
        if cluster.name.startswith(prefix):
            yield Violation(
                "name",
                cluster.name,
                "AWS keeps names that begin with aws, amazon or amzn to itself",
                "set a name with another beginning, as esm2",
            )


RULES = (name_is_not_reserved,)
