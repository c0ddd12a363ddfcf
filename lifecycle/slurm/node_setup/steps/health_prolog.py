"""Quick checks of a worker before each job, where Slurm looks for them."""

from __future__ import annotations

import os
import re

from node_setup.failure import SetupError
from node_setup.node import Node

CHECK = "/usr/local/sbin/check-node-health"
FOLDER = "/opt/slurm/etc/prolog.d"
"""HyperPod's configuration has Prolog=/opt/slurm/etc/prolog.d/*."""
NAME = "500_node_health"


def install(node: Node) -> None:
    """Install the checks, and the prolog in the folder that the running Slurm says it runs.

    Raises:
        SetupError: if the prolog, run here, does not come to an end by itself.
    """
    text = (node.files / "units/check_node_health.sh").read_text()
    text = text.replace("@LUSTRE@", node.settings.lustre_mount_path)
    text = text.replace("@NUM_GPUS@", str(node.facts.hardware.num_gpus))
    node.install(CHECK, text, mode=0o755)
    folder = _folder(node)
    node.install(f"{folder}/{NAME}", (node.files / "units/health_check_prolog.sh").read_text(), mode=0o755)
    _verify(node)


def _folder(node: Node) -> str:
    """The folder whose scripts Slurm runs; the image's own, with a warning, if Slurm runs no such folder."""
    shown = node.host.try_run("scontrol", "show", "config")
    if shown.status != 0:
        node.warn(f"Slurm does not say whether it runs {FOLDER}: {shown.said}")
        return FOLDER
    # Slurm 22.05 to 23.11 show one line, later ones may show one for each: Prolog[0] = ...
    prologs = re.findall(r"^Prolog(?:\[\d+\])?\s*=\s*(\S+)", shown.output, re.MULTILINE)
    folders = [
        os.path.dirname(value) for prolog in prologs for value in prolog.split(",") if value.endswith("/*")
    ]
    if not folders:
        node.warn(
            f"the health checks do not run before jobs: slurm.conf has Prolog={','.join(prologs)}. "
            f"Set Prolog={FOLDER}/* and `scontrol reconfigure`"
        )
        return FOLDER
    return FOLDER if FOLDER in folders else folders[0]


def _verify(node: Node) -> None:
    """Run the checks once: a fault is for a person to see now, not when the first job comes."""
    done = node.host.try_run(node.host.path(CHECK), timeout_seconds=60)
    said = "; ".join(done.output.strip().splitlines())
    if done.status == 86:
        raise SetupError(
            f"this node is not fit for jobs: {said}",
            f"repair what it says, or replace the node; `sudo {CHECK}` looks again",
        )
    if done.status != 0:
        raise SetupError(f"{CHECK} ended with {done.status}: {done.said}", "this is a mistake in that script")
    if said:
        node.warn(f"health checks that do not work here, and are left out: {said}")
