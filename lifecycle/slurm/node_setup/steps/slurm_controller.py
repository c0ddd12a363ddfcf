"""Verify Slurm on a controller: slurmctld, the cluster file's partitions, pyxis and the topology.

The platform sets these up. The step changes two things: it makes slurmctld reread plugstack.conf if the file
is newer than slurmctld's start, and adopt the accounting database's number of the cluster. Faults that
concern workers are warnings here and errors on the workers.
"""

from datetime import datetime
from functools import partial

from node_setup import cluster_id, pyxis
from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.slurm import TOPOLOGIES, configuration, wait_for_controller

HANDED_OUT = "/var/lib/node-setup/plugstack_handed_out"
"""Record of the change time of the plugstack.conf that slurmctld reread last, in seconds."""


def verify(node: Node) -> None:
    """Check that slurmctld answers and distributes pyxis; warn of faults that concern workers.

    Raises:
        SetupError: if slurmctld does not answer, or pyxis is configured and does not load.
    """
    wait_for_controller(node.host, repair=partial(cluster_id.repair, node))
    config = configuration(node.host)
    _warn_of_partitions(node)
    _verify_pyxis(node)
    _hand_out_pyxis(node, config.get("BOOT_TIME", ""))
    _warn_of_topology(node, config.get("TopologyPlugin", ""))


def _warn_of_partitions(node: Node) -> None:
    """Warn only, because the service may add a partition with its first node, which raises the error."""
    shown = node.host.run("sinfo", "--noheader", "--format=%R").split()
    wanted = {
        group.partition for group in node.settings.instance_groups.values() if group.partition
    }
    for name in sorted(wanted - set(shown)):
        node.warn(
            f"Slurm has no partition {name}, only {', '.join(sorted(set(shown))) or 'none'}; when the "
            "group's nodes exist, `sinfo` must show it"
        )


def _verify_pyxis(node: Node) -> None:
    if pyxis.srun_knows(node.host):
        return
    if pyxis.configured_at(node.host) is not None:
        raise SetupError(
            f"plugstack.conf names pyxis, and srun has no option {pyxis.OPTION}",
            "the plugin does not load: see `srun -vv --help`, and that its file exists",
        )
    node.warn(
        f"this image's Slurm has no pyxis: srun has no {pyxis.OPTION}, and jobs run outside containers; "
        "HyperPod's current images have it"
    )


def _hand_out_pyxis(node: Node, started: str) -> None:
    """Make slurmctld reread plugstack.conf and send it to all nodes, if the file changed since its start.

    slurmctld distributes the version that it read. It rereads once per change, because the time of the
    distributed file is recorded.
    """
    changed_at = pyxis.configured_at(node.host)
    try:
        started_at = datetime.strptime(started, "%Y-%m-%dT%H:%M:%S").timestamp()
    except ValueError:
        started_at = 0.0
    record = node.host.path(HANDED_OUT)
    known = record.read_text() if record.exists() else ""
    if changed_at is None or changed_at <= started_at or known == str(changed_at):
        return
    node.host.run("scontrol", "reconfigure")
    # Versions from 23.11 restart for that.
    wait_for_controller(node.host)
    node.host.write_text(HANDED_OUT, str(changed_at))
    node.changed("slurmctld: has read plugstack.conf again, and handed it out")


def _warn_of_topology(node: Node, plugin: str) -> None:
    """Warn only, because the service writes the topology when the nodes exist, after the controller."""
    if plugin not in TOPOLOGIES:
        return
    shown = node.host.try_run("scontrol", "show", "topology")
    if (
        shown.status != 0
        or not shown.output.strip()
        or "No topology" in shown.output + shown.errors
    ):
        node.warn(
            f"Slurm has {plugin} and no topology: until the service writes one, jobs are rejected with "
            "`Requested topology configuration is not available`; if it stays so, take TopologyPlugin out "
            "of slurm.conf and restart slurmctld"
        )
