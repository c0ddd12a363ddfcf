"""Limits in Slurm's accounting database: as sacctmgr sets them, and as it shows them.

A limit has the name of its column. One of a resource also has the resource, as ``grptres=node``.
"""

from collections.abc import Collection, Mapping

from node_setup.settings import JobLimits

Limits = dict[str, str]
GPU = "gres/gpu"
"""Resource that slurmctld counts if ``AccountingStorageTRES`` has it."""
NO_LIMIT = "-1"
"""Value that removes a limit."""
ACCOUNT_COLUMNS = ("grpjobs", "grpsubmitjobs", "grptres", "qos", "defaultqos")
QOS_COLUMNS = (
    "priority",
    "maxwall",
    "grpjobs",
    "grpsubmitjobs",
    "grptres",
    "maxjobsperuser",
    "maxsubmitjobsperuser",
    "maxtresperuser",
)
_OF_RESOURCES = frozenset({"grptres", "maxtresperuser"})
"""Columns with a limit for each resource."""


def of_all(limits: JobLimits) -> Limits:
    """Return the limits of all jobs of an account or a QOS."""
    return _limits(limits, jobs="grpjobs", submitted="grpsubmitjobs", resources="grptres")


def of_each_user(limits: JobLimits) -> Limits:
    """Return the limits of each user's jobs in a QOS."""
    return _limits(
        limits,
        jobs="maxjobsperuser",
        submitted="maxsubmitjobsperuser",
        resources="maxtresperuser",
    )


def _limits(limits: JobLimits, *, jobs: str, submitted: str, resources: str) -> Limits:
    values = {
        jobs: limits.max_jobs,
        submitted: limits.max_submitted_jobs,
        f"{resources}=node": limits.max_nodes,
        f"{resources}={GPU}": limits.max_gpus,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def counts_gpus(limits: JobLimits | None) -> bool:
    """Return whether slurmctld has to count GPUs for these limits."""
    return limits is not None and limits.max_gpus is not None


def shown_limits(columns: Mapping[str, str]) -> Limits:
    """Return the limits in a row that sacctmgr shows, by column; an empty column has none."""
    found: Limits = {}
    for name, text in columns.items():
        if name in _OF_RESOURCES:
            for part in filter(None, text.split(",")):
                resource, _, value = part.rpartition("=")
                found[f"{name}={resource}"] = value
        elif name == "qos":
            found[name] = qos_list(text.split(","))
        elif text:
            found[name] = text
    return found


def qos_list(names: Collection[str]) -> str:
    """Return a list of QOS in one order, because sacctmgr shows them in another than they were set in."""
    return ",".join(sorted(set(filter(None, names))))


def shown_time(time: str) -> str:
    """Return a time of the settings, days-hours:minutes, in the form in which Slurm shows it."""
    days, _, clock = time.partition("-")
    return f"{int(days)}-{clock}:00" if int(days) else f"{clock}:00"


def changes(wanted: Limits, shown: Limits, earlier: Collection[str]) -> Limits:
    """Return what to set, for limits that differ and for those of an earlier run that are wanted no more."""
    found = {name: value for name, value in wanted.items() if shown.get(name) != value}
    for name in earlier:
        if name not in wanted and shown.get(name):
            found[name] = "" if name == "qos" else NO_LIMIT
    return found


def arguments(changed: Limits) -> list[str]:
    """Return the words after ``set``; sacctmgr takes the limits of all resources of a column in one word."""
    words: dict[str, list[str]] = {}
    for name, value in changed.items():
        column, _, resource = name.partition("=")
        words.setdefault(column, []).append(f"{resource}={value}" if resource else value)
    return [f"{column}={','.join(values)}" for column, values in words.items()]
