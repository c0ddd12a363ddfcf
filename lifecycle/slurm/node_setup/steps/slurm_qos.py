"""Create Slurm's QOS from the cluster file, and have Slurm enforce limits, on the primary controller.

QOS that the file never named are not changed. A limit that the file no longer has is removed if an earlier
run set it.
"""

import json
from collections.abc import Mapping, Sequence

from node_setup.enforcement import bring_values, missing_values
from node_setup.limits import (
    GPU,
    QOS_COLUMNS,
    Limits,
    arguments,
    changes,
    counts_gpus,
    of_all,
    of_each_user,
    shown_limits,
    shown_time,
)
from node_setup.node import Node
from node_setup.settings import Qos, Scheduling
from node_setup.slurm import configuration

RECORD = "/var/lib/node-setup/slurm_qos.json"
"""QOS that earlier runs created or changed, with the names of their limits."""
FIRST_QOS = "normal"
"""QOS of Slurm's database from its start, which is never removed."""
REMEDY = "see `sacctmgr show qos` and the log of slurmdbd on the controller"

Record = dict[str, list[str]]


def apply(node: Node) -> None:
    """Create QOS with their limits, and enforce them, on the primary controller only.

    Raises:
        SetupError: if sacctmgr or slurmctld refuses.
    """
    scheduling = node.settings.scheduling
    if not node.facts.is_primary_controller or scheduling is None:
        return
    _enforce(node, scheduling)
    shown = _show(node)
    record = read_record(node, RECORD)
    for qos in scheduling.qos:
        if qos.name not in shown:
            _change(node, "add", "qos", f"name={qos.name}")
        wanted = _limits(qos)
        bring_limits(
            node,
            ("qos", "where", f"name={qos.name}"),
            changes(wanted, shown.get(qos.name, {}), record.get(qos.name, [])),
        )
        record[qos.name] = sorted(wanted)
    write_record(node, RECORD, record)


def remove_old(node: Node) -> None:
    """Remove the QOS that the file no longer has, after the last account and partition let go of them."""
    if not node.facts.is_primary_controller:
        return
    scheduling = node.settings.scheduling
    names = {qos.name for qos in scheduling.qos} if scheduling else set()
    record = read_record(node, RECORD)
    for name in sorted(set(record) - names):
        shown = _show(node).get(name)
        if shown is None:
            del record[name]
        elif name == FIRST_QOS:
            what = ("qos", "where", f"name={name}")
            bring_limits(node, what, changes({}, shown, record.pop(name)))
        elif node.host.run("squeue", "--noheader", f"--qos={name}", "--format=%A").strip():
            node.warn(
                f"the QOS {name} is no longer in the cluster file, and stays while its jobs run or wait: "
                f"`squeue --qos={name}`, then apply the scripts again"
            )
        else:
            _change(node, "remove", "qos", "where", f"name={name}")
            del record[name]
    write_record(node, RECORD, record)


def bring_limits(node: Node, what: Sequence[str], changed: Limits) -> None:
    """Set limits of a QOS or an account, if there are any to set."""
    if changed:
        _change(node, "modify", *what, "set", *arguments(changed))


def read_record(node: Node, path: str) -> Record:
    file = node.host.path(path)
    found: Record = json.loads(file.read_text()) if file.exists() else {}
    return found


def write_record(node: Node, path: str, record: Record) -> None:
    """Write the names of limits that were set; a node that never had any gets no file."""
    if record or node.host.path(path).exists():
        node.host.write_text(path, json.dumps(record, indent=2, sort_keys=True) + "\n", mode=0o600)


def _limits(qos: Qos) -> Limits:
    limits = of_all(qos)
    if qos.per_user:
        limits |= of_each_user(qos.per_user)
    if qos.priority is not None:
        limits["priority"] = str(qos.priority)
    if qos.max_time is not None:
        limits["maxwall"] = shown_time(qos.max_time)
    return limits


def _enforce(node: Node, scheduling: Scheduling) -> None:
    wanted = _needed(node, scheduling)
    if scheduling.enforce:
        bring_values(node, wanted)
        return
    for name, values in missing_values(configuration(node.host), wanted).items():
        node.warn(
            f"limits and QOS of the cluster file have no effect: {name} in slurm.conf lacks "
            f"{', '.join(values)}; set scheduling.enforce: true, or add it"
        )


def _needed(node: Node, scheduling: Scheduling) -> Mapping[str, Sequence[str]]:
    """Return what lists of slurm.conf must have, by their names."""
    needed: dict[str, Sequence[str]] = {
        "AccountingStorageEnforce": ("associations", "limits", "qos")
    }
    limits = [*node.settings.accounts, *scheduling.qos, *(qos.per_user for qos in scheduling.qos)]
    if any(counts_gpus(found) for found in limits):
        needed["AccountingStorageTRES"] = (GPU,)
    return needed


def _show(node: Node) -> dict[str, Limits]:
    """Return the limits of all QOS, by name."""
    columns = ("name", *QOS_COLUMNS)
    shown = node.host.run(
        "sacctmgr",
        "--parsable2",
        "--noheader",
        "show",
        "qos",
        f"format={','.join(columns)}",
        remedy=REMEDY,
    )
    rows = [dict(zip(columns, line.split("|"), strict=True)) for line in shown.splitlines() if line]
    return {row.pop("name"): shown_limits(row) for row in rows}


def _change(node: Node, *what: str) -> None:
    node.host.run("sacctmgr", "--immediate", *what, remedy=REMEDY)
    node.changed(f"sacctmgr {' '.join(what)}")
