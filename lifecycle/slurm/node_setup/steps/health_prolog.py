"""Quick checks of a worker before each job, in Slurm's folder of prologs; removed if switched off."""

import os

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.slurm import configuration

CHECK = "/usr/local/sbin/check-node-health"
FOLDER = "/opt/slurm/etc/prolog.d"
"""Folder of HyperPod's setting Prolog=/opt/slurm/etc/prolog.d/*."""
HOMES = "/home"
NAME = "500_node_health"
FAULT = 86
"""Exit status of the checks for a fault of the node, which no accidental failure has."""

SECONDS_FOR_SLURM = 60
"""Time limit. slurmctld is restarted when nodes join, and when limits of the cluster file are new."""


def apply(node: Node) -> None:
    """Install the checks, and the prolog in the folder of the running Slurm.

    Raises:
        SetupError: if the checks find a fault of this node.
    """
    config = _configuration(node)
    if not node.settings.health_check_prolog:
        _take_back(node, config)
        return
    text = node.template(
        "units/check_node_health.sh",
        # Without Lustre, jobs need the homes.
        lustre=node.settings.lustre_mount_path or HOMES,
        num_gpus=str(node.facts.hardware.num_gpus),
        num_neuron_devices=str(node.facts.hardware.num_neuron_devices),
    )
    node.install(CHECK, text, mode=0o755)
    folder = _folder(node, config)
    node.install(f"{folder}/{NAME}", node.template("units/health_check_prolog.sh"), mode=0o755)
    _verify(node)


def _configuration(node: Node) -> dict[str, str] | None:
    try:
        return node.host.wait_for(
            lambda: configuration(node.host),
            timeout_seconds=SECONDS_FOR_SLURM,
            what=f"Slurm does not say whether it runs {FOLDER}",
        )
    except SetupError as error:
        node.warn(error.problem)
        return None


def _folders(config: dict[str, str]) -> list[str]:
    """Return the folders in which Slurm runs every script."""
    paths: list[str] = []
    for name, value in config.items():
        # Slurm 22.05 to 23.11 show one line; later versions may show several: Prolog[0] = ...
        if name.split("[")[0] == "Prolog":
            paths += value.split(",")
    return [os.path.dirname(path) for path in paths if path.endswith("/*")]


def _folder(node: Node, config: dict[str, str] | None) -> str:
    """Return a folder in which Slurm runs every script; if there is none, warn and return the image's."""
    if config is None:
        return FOLDER
    folders = _folders(config)
    if not folders:
        node.warn(
            f"the health checks do not run before jobs: slurm.conf has Prolog={config.get('Prolog', '')}. "
            f"Set Prolog={FOLDER}/* and `scontrol reconfigure`"
        )
        return FOLDER
    return FOLDER if FOLDER in folders else folders[0]


def _take_back(node: Node, config: dict[str, str] | None) -> None:
    # The prolog is removed first. Without the checks, it would log at every job that they are missing.
    for folder in {FOLDER, *_folders(config or {})}:
        node.remove(f"{folder}/{NAME}")
    node.remove(CHECK)


def _verify(node: Node) -> None:
    """Run the checks once, so that a fault is reported now and not at the first job.

    Other failures of the checks are warnings, because jobs start despite them.
    """
    try:
        done = node.host.try_run(node.host.path(CHECK))
    except SetupError as error:
        node.warn(f"the health checks do not work here: {error.problem}")
        return
    said = "; ".join(done.output.strip().splitlines())
    if done.status == FAULT:
        raise SetupError(
            f"this node is not fit for jobs: {said}",
            f"repair that, or replace the node; `sudo {CHECK}` repeats the checks",
        )
    if done.status != 0:
        node.warn(
            f"the health checks do not work here: {CHECK} ended with {done.status}: {done.said}"
        )
    elif said:
        node.warn(f"health checks that do not work here and are skipped: {said}")
