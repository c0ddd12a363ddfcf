"""Rules for QOS, limits and options of partitions, between their sections."""

from collections.abc import Iterator, Sequence

from config.access import Account
from config.reading.violation import Violation
from config.rules.rule import SlurmRule, repetitions
from config.scheduling import COMMON_PARTITION, FIRST_QOS, PartitionOptions
from config.slurm_cluster import SlurmCluster


def names_appear_once(cluster: SlurmCluster) -> Iterator[Violation]:
    if not cluster.scheduling:
        return
    for kind, items in (
        ("qos", cluster.scheduling.qos),
        ("partitions", cluster.scheduling.partitions),
    ):
        names = [item.name for item in items]
        earlier = f"an earlier item of scheduling.{kind} has this name"
        yield from repetitions(
            f"scheduling.{kind}", names, earlier, "merge the two, or rename one", key=".name"
        )


def qos_exist(cluster: SlurmCluster) -> Iterator[Violation]:
    known = _qos_names(cluster)
    for path, name in _references_to_qos(cluster):
        if name not in known:
            yield Violation(
                path,
                name,
                f"the QOS are {', '.join(known)}",
                "set one of them, or add it to scheduling.qos",
            )


def accounts_may_have_their_default(cluster: SlurmCluster) -> Iterator[Violation]:
    for account in cluster.access.accounts:
        if account.default_qos is not None and account.default_qos not in account.qos:
            listed = ", ".join(account.qos) or "none"
            yield Violation(
                f"access.accounts[{account.name}].default_qos",
                account.default_qos,
                f"it is one of the account's own qos: {listed}",
                "add it to the account's qos, or remove it",
            )


def limits_have_their_section(cluster: SlurmCluster) -> Iterator[Violation]:
    for account in cluster.access.accounts:
        found = _limits_of(account)
        if found and cluster.scheduling is None:
            yield Violation(
                f"access.accounts[{account.name}].{found[0]}",
                getattr(account, found[0]),
                "limits and QOS of accounts belong to scheduling, which the file does not have",
                "add scheduling with enforce: true, or remove it",
            )


def partitions_exist(cluster: SlurmCluster) -> Iterator[Violation]:
    there = [group.partition for group in cluster.instance_groups if group.partition]
    known = list(dict.fromkeys([*there, COMMON_PARTITION]))
    for options in _partitions(cluster):
        if options.name not in known:
            yield Violation(
                f"scheduling.partitions[{options.name}].name",
                options.name,
                f"the partitions are {', '.join(known)}",
                "set one of them, or the partition of a worker group to this name",
            )


def one_partition_is_the_default(cluster: SlurmCluster) -> Iterator[Violation]:
    defaults = [options for options in _partitions(cluster) if options.default]
    for options in defaults[1:]:
        yield Violation(
            f"scheduling.partitions[{options.name}].default",
            True,
            f"{defaults[0].name} is the default already, and Slurm has one",
            "set false in one of the two",
        )


def times_are_in_order(cluster: SlurmCluster) -> Iterator[Violation]:
    for path, time in _times(cluster):
        if minutes(time) == 0:
            yield Violation(path, time, "a job runs for a minute or more", "set a longer time")
    for options in _partitions(cluster):
        longest = options.max_time
        usual = options.default_time
        if longest and usual and minutes(usual) > minutes(longest):
            yield Violation(
                f"scheduling.partitions[{options.name}].default_time",
                usual,
                f"max_time is {longest}",
                "set a shorter time, or raise max_time",
            )


def allowed_accounts_exist(cluster: SlurmCluster) -> Iterator[Violation]:
    names = [account.name for account in cluster.access.accounts]
    for options in _partitions(cluster):
        for index, name in enumerate(options.allow_accounts):
            if name not in names:
                yield Violation(
                    f"scheduling.partitions[{options.name}].allow_accounts[{index}]",
                    name,
                    f"access.accounts has {', '.join(names) or 'none'}",
                    "set one of them, or add the account",
                )


def minutes(time: str) -> int:
    """Return the minutes of a time in the form days-hours:minutes."""
    days, _, clock = time.partition("-")
    hours, _, rest = clock.partition(":")
    return (int(days) * 24 + int(hours)) * 60 + int(rest)


def _qos_names(cluster: SlurmCluster) -> list[str]:
    own = [qos.name for qos in cluster.scheduling.qos] if cluster.scheduling else []
    return list(dict.fromkeys([FIRST_QOS, *own]))


def _partitions(cluster: SlurmCluster) -> Sequence[PartitionOptions]:
    return cluster.scheduling.partitions if cluster.scheduling else []


def _references_to_qos(cluster: SlurmCluster) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each reference; ``default_qos`` has a rule of its own."""
    for account in cluster.access.accounts:
        for index, name in enumerate(account.qos):
            yield f"access.accounts[{account.name}].qos[{index}]", name
    for options in _partitions(cluster):
        path = f"scheduling.partitions[{options.name}]"
        if options.qos is not None:
            yield f"{path}.qos", options.qos
        for index, name in enumerate(options.allow_qos):
            yield f"{path}.allow_qos[{index}]", name


def _times(cluster: SlurmCluster) -> Iterator[tuple[str, str]]:
    for qos in cluster.scheduling.qos if cluster.scheduling else []:
        if qos.max_time is not None:
            yield f"scheduling.qos[{qos.name}].max_time", qos.max_time
    for options in _partitions(cluster):
        for field in ("max_time", "default_time"):
            time = getattr(options, field)
            if time is not None:
                yield f"scheduling.partitions[{options.name}].{field}", time


def _limits_of(account: Account) -> list[str]:
    """Return the names of the account's fields that Slurm has to enforce."""
    fields = ("max_jobs", "max_submitted_jobs", "max_nodes", "max_gpus")
    set_fields = [field for field in fields if getattr(account, field) is not None]
    return set_fields + (["qos"] if account.qos else [])


RULES = (
    # Slurm finds QOS and partitions by name, so that of two items one would win by chance.
    names_appear_once,
    # sacctmgr refuses an unknown QOS, and slurmctld drops it from a partition, after the deployment.
    qos_exist,
    # Slurm rejects every job of an account whose default is not in its list (sacctmgr manual, DefaultQOS).
    accounts_may_have_their_default,
    # They would be in the database without an effect, and people would rely on them.
    limits_have_their_section,
    # scontrol finds no such partition, so that the options would never apply.
    partitions_exist,
    # slurmctld keeps the last Default=YES, which depends on the order of updates.
    one_partition_is_the_default,
    # Slurm rejects jobs whose time is above the limit, which would be all that state none.
    times_are_in_order,
    # slurmctld ignores an unknown name, and a misspelt list would shut everyone out.
    allowed_accounts_exist,
    # AccountingStorageEnforce refuses jobs without an association, that is of all users then.
    SlurmRule(
        "scheduling.enforce",
        lambda cluster: (
            cluster.scheduling
            and cluster.scheduling.enforce
            and not any(user.account for user in cluster.access.users)
        ),
        "it admits jobs of access.users with an account only, and no user has one",
        "set account for the users, or false",
    ),
)
