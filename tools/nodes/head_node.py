"""Machine that submits jobs: this one if it has Slurm's programs, or the head node by a session."""

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
# As the user and with what belongs to them alone: the session's script is root's.
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
    """``start`` is the aws command that starts a session; empty where Slurm is on this machine."""

    name: str
    start: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        return not self.start

    def run_as_root(self, script: str, arguments: Sequence[str], say: Say) -> int:
        """Run a bash script by a session, but never on this machine, because it needs root.

        Raises:
            BrokenSession: if the session ends before the script does.
        """
        assert self.start
        return run_on_node(self.start, script, arguments, say)

    def run(self, user: str, command: Sequence[str], say: Say) -> int:
        """Run a program as the user, telling each line that it says; returns its exit status.

        Raises:
            BrokenSession: if the session ends before the program does.
        """
        if self.start:
            return run_on_node(
                self.start, _AS_USER.replace("PROGRAMS", SLURM_PROGRAMS), [user, *command], say
            )
        return tell_lines(command, say)


def slurm_is_here() -> bool:
    return shutil.which("sbatch") is not None


def find_head_node(cluster: SlurmCluster, profile: str | None) -> HeadNode:
    """The machine that this runs on, or the cluster's login node or controller.

    Raises:
        ValueError: if there is no such cluster, no node that can be reached, or no program for sessions.
    """
    if slurm_is_here():
        return HeadNode("this machine")
    check_programs()
    session = open_session(region=cluster.region, profile=profile)
    found = read_cluster_nodes(aws_client(session, "sagemaker"), cluster.name)
    node = choose_node(found)
    return HeadNode(node.name, tuple(start_session(found, node, region=cluster.region, profile=profile)))
