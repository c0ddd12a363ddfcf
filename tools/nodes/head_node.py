"""Machine that submits jobs: this one if it has Slurm's programs, or the head node through a session."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from config.slurm_cluster import SlurmCluster
from tools.aws_session import aws_client, open_session
from tools.command_line import Say, tell_lines
from tools.nodes.cluster_nodes import choose_node, read_cluster_nodes
from tools.nodes.node_session import check_programs, run_on_node, start_session

SLURM_PROGRAMS = "/opt/slurm/bin"
"""Folder of HyperPod's image, in addition to the PATH."""
# The session's script runs as root. It runs the command as the user, with an environment of the user's only.
_AS_USER = """
set -euo pipefail
user="$1"; shift
home="$(getent passwd "$user" | cut -d: -f6)" || true
[[ "$home" ]] || { echo "error: there is no user $user on $HOSTNAME" >&2; exit 2; }
cd /
exec runuser --user "$user" -- env --ignore-environment HOME="$home" USER="$user" LOGNAME="$user" \
    LANG=C.UTF-8 PATH="PROGRAMS:/usr/local/bin:/usr/bin:/bin" "$@"
"""


@dataclass(frozen=True)
class HeadNode:
    name: str
    start: tuple[str, ...] = ()
    """Command that starts a session with the node; empty if this machine submits jobs itself."""

    @property
    def is_here(self) -> bool:
        """Return whether this machine submits jobs itself."""
        return not self.start

    def run_as_root(self, script: str, arguments: Sequence[str], say: Say) -> int:
        """Run a bash script through a session, never on this machine, because it needs root.

        Raises:
            BrokenSession: if the session ends before the script does.
        """
        assert self.start
        return run_on_node(self.start, script, arguments, say)

    def run(self, user: str, command: Sequence[str], say: Say) -> int:
        """Run a program as the user, pass on each line of its output, and return its exit status.

        Raises:
            BrokenSession: if the session ends before the program does.
        """
        if self.is_here:
            return tell_lines(command, say)
        script = _AS_USER.replace("PROGRAMS", SLURM_PROGRAMS)
        return run_on_node(self.start, script, [user, *command], say)


def slurm_is_here() -> bool:
    return shutil.which("sbatch") is not None


def find_head_node(cluster: SlurmCluster, profile: str | None) -> HeadNode:
    """Return this machine if it has Slurm, or the cluster's login node or controller.

    Raises:
        ValueError: if the cluster or its node cannot be reached, or a program for sessions is missing.
    """
    if slurm_is_here():
        return HeadNode("this machine")
    check_programs()
    session = open_session(region=cluster.region, profile=profile)
    found = read_cluster_nodes(aws_client(session, "sagemaker"), cluster.name)
    node = choose_node(found)
    return HeadNode(
        node.name, tuple(start_session(found, node, region=cluster.region, profile=profile))
    )
