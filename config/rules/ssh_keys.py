"""Whether what users log in with are public keys."""

from __future__ import annotations

from collections.abc import Iterator

from config.public_key import fault, is_private_key
from config.slurm_cluster import SlurmCluster
from config.violation import Violation

_NUM_SHOWN = 60
"""Characters of a line that is no key: enough to find it, and on one line."""


def keys_are_public_keys(cluster: SlurmCluster) -> Iterator[Violation]:
    for user in cluster.access.users:
        for index, key in enumerate(user.ssh_keys):
            wrong = fault(key)
            if wrong:
                # A private key is named and not shown; cut off it might not be known for one.
                is_short = len(key) <= _NUM_SHOWN or is_private_key(key)
                got = key if is_short else f"{key[:_NUM_SHOWN]}..."
                yield Violation(f"access.users[{user.name}].ssh_keys[{index}]", got, *wrong)


RULES = (keys_are_public_keys,)
