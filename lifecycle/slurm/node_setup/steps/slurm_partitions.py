"""Set options of Slurm's partitions from the cluster file, on the primary controller, and keep them set."""

import json

from node_setup import partition_options
from node_setup.limits import shown_time
from node_setup.node import Node
from node_setup.service import FOLDER, remove_units, run_unit
from node_setup.settings import PartitionOptions
from node_setup.slurm import wait_for_controller

UNIT = "partition-options.service"
ROOT = "root"
"""Account of root, whose jobs import images (`make image TARGET=slurm`)."""
PROGRAM = f"{FOLDER}/partition_options.py"
OPTIONS = f"{FOLDER}/partition_options.json"


def apply(node: Node) -> None:
    """Set the options, and install the service that sets them again; without options, remove it.

    A partition that HyperPod has not created yet gets its options from the service.

    Raises:
        SetupError: if slurmctld refuses an option, or the service does not start.
    """
    if not node.facts.is_primary_controller:
        return
    scheduling = node.settings.scheduling
    wanted = {
        found.name: _options(found) for found in (scheduling.partitions if scheduling else ())
    }
    _forget_old(node, wanted)
    shown = partition_options.shown_options(node.host.run(*partition_options.SHOW))
    for command in partition_options.updates(wanted, shown):
        node.host.run(*command, remedy="see scheduling.partitions of the cluster file")
        node.changed(" ".join(command))
    if not wanted:
        remove_units(node, (UNIT,))
        for path in (PROGRAM, OPTIONS):
            node.remove(path)
        return
    changed = node.install(PROGRAM, node.template("node_setup/partition_options.py"))
    changed |= node.install(OPTIONS, json.dumps(wanted, indent=2, sort_keys=True) + "\n")
    run_unit(node, UNIT, changed=changed)


def _options(found: PartitionOptions) -> dict[str, str]:
    """Return options with the names and in the form that scontrol shows."""
    options = {
        "Default": "YES" if found.default else None,
        "MaxTime": shown_time(found.max_time) if found.max_time else None,
        "DefaultTime": shown_time(found.default_time) if found.default_time else None,
        "MaxNodes": found.max_nodes,
        "PriorityTier": found.priority_tier,
        "QoS": found.qos,
        "AllowQos": ",".join(found.allow_qos) or None,
        "AllowAccounts": ",".join([ROOT, *found.allow_accounts]) if found.allow_accounts else None,
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def _forget_old(node: Node, wanted: dict[str, dict[str, str]]) -> None:
    """Have slurmctld read slurm.conf again if an option is wanted no more, which sets all of them back."""
    file = node.host.path(OPTIONS)
    before = json.loads(file.read_text()) if file.exists() else {}
    if all(set(options) <= set(wanted.get(name, {})) for name, options in before.items()):
        return
    node.host.run("scontrol", "reconfigure")
    wait_for_controller(node.host)
    node.changed("slurmctld: has read slurm.conf again, without earlier options of partitions")
