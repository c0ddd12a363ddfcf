"""Numbers of users and groups: what two cluster files give the same number, or the same name."""

from collections.abc import Iterator, Mapping

from config.cluster import Cluster
from config.slurm_cluster import SlurmCluster

KINDS: Mapping[str, str] = {"user": "uid", "group": "gid"}
"""Kinds of owners of files, and the fields with their numbers."""
Numbers = Mapping[str, int]
"""Numbers by name."""


def numbers_of(cluster: Cluster) -> dict[str, Numbers]:
    """Return the numbers of users and groups, by kind. A file for EKS has none."""
    if not isinstance(cluster, SlurmCluster):
        return {kind: {} for kind in KINDS}
    users = cluster.access.users
    own_groups = {user.name: user.uid for user in users if user.group is None}
    shared_groups = {group.name: group.gid for group in cluster.access.groups}
    return {
        "user": {user.name: user.uid for user in users},
        # A user without a group has one of the user's own name and number.
        "group": own_groups | shared_groups,
    }


def conflicts(source: Cluster, target: Cluster) -> Iterator[str]:
    """Yield what would give files to another owner: a number with two names, or a name with two numbers."""
    ours, theirs = numbers_of(source), numbers_of(target)
    for kind, number_field in KINDS.items():
        names = {number: name for name, number in theirs[kind].items()}
        for name, number in ours[kind].items():
            if names.get(number, name) != name:
                yield (
                    f"{number_field} {number} is the {kind} {name} in {source.name} and {names[number]} in "
                    f"{target.name}"
                )
            if theirs[kind].get(name, number) != number:
                yield (
                    f"the {kind} {name} has {number_field} {number} in {source.name} and "
                    f"{theirs[kind][name]} in {target.name}"
                )


def verify_numbers(source: Cluster, target: Cluster) -> None:
    """Raise ValueError if files would get another owner."""
    found = list(conflicts(source, target))
    if found:
        lines = "\n".join(f"  {text}" for text in found)
        raise ValueError(
            f"access: files keep the numbers of their owners, and these do not agree:\n{lines}\nGive each "
            "name the same number in both files before the first copy. Nothing was copied"
        )
