"""Set options of Slurm's partitions and nodes from the cluster file, on the primary controller.

A service keeps them set.
"""

import json

from node_setup import node_weights, partition_options
from node_setup.facts import resource_config
from node_setup.limits import shown_time
from node_setup.node import Node
from node_setup.node_weights import GroupOptions
from node_setup.service import FOLDER, remove_units, run_unit
from node_setup.settings import PartitionOptions
from node_setup.slurm import wait_for_controller

UNIT = "partition-options.service"
ROOT = "root"
"""Account of root, whose jobs import images (`make image TARGET=slurm`)."""
PROGRAM = f"{FOLDER}/partition_options.py"
OPTIONS = f"{FOLDER}/partition_options.json"
WEIGHTS_MODULE = f"{FOLDER}/node_setup/node_weights.py"
WEIGHTS = f"{FOLDER}/node_weights.json"


def apply(node: Node) -> None:
    """Set the options, and install the service that sets them again; without options, remove it.

    A partition that HyperPod has not created yet gets its options from the service. A node that joins later
    gets its weight there.

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
    weights = _weights(node)
    _set_weights(node, weights)
    if not wanted and not weights:
        remove_units(node, (UNIT,))
        for path in (PROGRAM, OPTIONS, WEIGHTS_MODULE, WEIGHTS):
            node.remove(path)
        return
    changed = node.install(PROGRAM, node.template("node_setup/partition_options.py"))
    changed |= node.install(WEIGHTS_MODULE, node.template("node_setup/node_weights.py"))
    changed |= node.install(OPTIONS, json.dumps(wanted, indent=2, sort_keys=True) + "\n")
    changed |= node.install(WEIGHTS, json.dumps(weights, indent=2, sort_keys=True) + "\n")
    run_unit(node, UNIT, changed=changed)


def _weights(node: Node) -> dict[str, GroupOptions]:
    """Return the options of nodes by group; empty if all worker groups are alike."""
    return {
        name: {"weight": group.weight, "feature": group.feature}
        for name, group in node.settings.instance_groups.items()
        if group.weight is not None and group.feature is not None
    }


def _set_weights(node: Node, wanted: dict[str, GroupOptions]) -> None:
    """Set the weights and features of nodes, or remove those that were set before."""
    if wanted:
        groups = node_weights.groups_by_address(resource_config(node.host))
        commands = node_weights.updates(wanted, groups, _shown_nodes(node))
    elif _had_weights(node):
        _read_configuration(node, "without earlier weights of nodes")
        commands = node_weights.removals(_shown_nodes(node))
    else:
        return
    for command in commands:
        node.host.run(*command, remedy="see `scontrol show node` on the controller")
        node.changed(" ".join(command))


def _had_weights(node: Node) -> bool:
    file = node.host.path(WEIGHTS)
    return file.exists() and bool(json.loads(file.read_text()))


def _shown_nodes(node: Node) -> list[dict[str, str]]:
    return node_weights.shown_nodes(node.host.run(*node_weights.SHOW))


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
    _read_configuration(node, "without earlier options of partitions")


def _read_configuration(node: Node, why: str) -> None:
    """Have slurmctld read slurm.conf again."""
    node.host.run("scontrol", "reconfigure")
    wait_for_controller(node.host)
    node.changed(f"slurmctld: has read slurm.conf again, {why}")
