"""Rules between SageMaker Studio and the rest of the file."""

from collections.abc import Iterator
from functools import partial

from config.cluster import Cluster, existing_security_groups
from config.reading.violation import Violation
from config.rules.rule import CommonRule, repetitions
from config.slurm_cluster import SlurmCluster
from config.studio import STUDIO_FOLDER, StudioProfile


def profiles_are_distinct(cluster: Cluster) -> Iterator[Violation]:
    names = [profile.name for profile in cluster.studio.profiles] if cluster.studio else []
    earlier = "an earlier profile has this name"
    fix = "set another name"
    yield from repetitions("studio.profiles", names, earlier, fix, key=".name")


def people_sign_in_one_way(cluster: Cluster) -> Iterator[Violation]:
    if not cluster.studio:
        return
    central = cluster.studio.sign_in == "identity_center"
    for profile in cluster.studio.profiles:
        wrong = partial(Violation, _path(profile, "sign_in_name"), profile.sign_in_name)
        if central and profile.sign_in_name is None:
            yield wrong(
                "with sign_in: identity_center, a profile belongs to a user of IAM Identity Center",
                "set that user's name",
            )
        if not central and profile.sign_in_name is not None:
            yield wrong(
                "with sign_in: iam, people sign in through the AWS console",
                "remove it, or set sign_in to identity_center",
            )


def jobs_belong_to_users(cluster: Cluster) -> Iterator[Violation]:
    if not (isinstance(cluster, SlurmCluster) and cluster.studio):
        return
    users = {user.name: user for user in cluster.access.users}
    listed = ", ".join(users) or "there are none"
    for profile in cluster.studio.profiles:
        user = users.get(profile.cluster_user or "")
        if profile.cluster_user and not user:
            yield Violation(
                _path(profile, "cluster_user"),
                profile.cluster_user,
                f"jobs run as one of access.users: {listed}",
                "set one of them, or add the user",
            )
        elif profile.login_space and not (user and user.admin):
            yield Violation(
                _path(profile, "login_space"),
                True,
                "it contains munge's key, which allows acting as any user, including root",
                "set cluster_user to an admin of access.users, or set false; spaces can submit jobs anyway",
            )


def _path(profile: StudioProfile, key: str) -> str:
    return f"studio.profiles[{profile.name}].{key}"


def _exports_partitions(cluster: Cluster) -> bool:
    path = cluster.storage.data_bucket.lustre_path
    return cluster.studio is not None and path is not None and path.split("/")[1] == STUDIO_FOLDER


RULES = (
    # SageMaker finds user profiles of a domain by name (API reference, CreateUserProfile).
    profiles_are_distinct,
    # CreateUserProfile takes SingleSignOnUserValue exactly if the domain uses SSO (API reference).
    people_sign_in_one_way,
    # slurmctld runs a job only under a number that the nodes know.
    jobs_belong_to_users,
    # New spaces begin with this volume, which would be above their own limit (DefaultEbsStorageSettings).
    CommonRule(
        "studio.space_gib",
        lambda cluster: cluster.studio and cluster.studio.space_gib > cluster.studio.max_space_gib,
        "max_space_gib ({cluster.studio.max_space_gib}) or less is allowed",
        "set less, or raise max_space_gib",
    ),
    # Spaces reach Lustre by rules in both groups, and the stacks change no existing group.
    CommonRule(
        "network.security_group_ids",
        lambda cluster: cluster.studio and existing_security_groups(cluster),
        "the stack of studio adds rules to the group of the file system, and changes no existing one",
        "remove it, so that the network stack creates a group, or remove studio",
        got=lambda cluster: ", ".join(existing_security_groups(cluster)),
    ),
    # Private files of people would become objects that all readers of the bucket see.
    CommonRule(
        "storage.data_bucket.lustre_path",
        _exports_partitions,
        f"Studio's partitions are in /{STUDIO_FOLDER}, and would be copied to the bucket",
        "set another directory, such as /data",
    ),
)
