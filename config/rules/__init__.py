"""What must hold between the values of a cluster file, beyond what each value's own type says.

Every rule looks at the whole cluster and yields what is wrong. All of them run, so a rule takes for granted
what another one checks: a wrong instance type or range is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from config.cluster import SlurmCluster
from config.rules import (
    access,
    groups,
    hardware,
    node_setup,
    provisioning,
    ranges,
    region,
    services,
    ssh_keys,
    storage,
    subnets,
    tags,
    zones,
)
from config.violation import Violation

Rule = Callable[[SlurmCluster], Iterator[Violation]]

RULES: tuple[Rule, ...] = (
    *region.RULES,
    *tags.RULES,
    *services.RULES,
    *provisioning.RULES,
    *ranges.RULES,
    *zones.RULES,
    *subnets.RULES,
    *storage.RULES,
    *groups.RULES,
    *hardware.RULES,
    *access.RULES,
    *ssh_keys.RULES,
    *node_setup.RULES,
)


def violations(cluster: SlurmCluster) -> list[Violation]:
    """Everything that is wrong, in the order of the rules."""
    return [violation for rule in RULES for violation in rule(cluster)]
