"""A shell on a node, through Session Manager: no public address, no open port.

``python -m tools.connect [NODE]``: ``head`` by default, or a group with one node, ``<group>-<n>``, a host
name as Slurm shows it, or an instance id.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from config.loader import load_slurm_cluster
from config.resource_names import shell_document
from tools.aws_session import aws_client, open_session
from tools.cluster_nodes import HEAD, choose_node, nodes_table, read_cluster_nodes
from tools.command_line import cluster_parser, run_command
from tools.session_command import check_programs, start_session
from tools.ssh_config import host_block, write_block

DEFAULT_SSH_CONFIG = Path("~/.ssh/config")
PRINT = Path("-")


def main() -> int:
    parser = cluster_parser("Open a shell on a node, list nodes, or configure ssh for one.")
    parser.add_argument(
        "node", nargs="?", default=HEAD, help="node, group, host name or instance id (%(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="list the nodes and stop")
    parser.add_argument(
        "--ssh-config",
        nargs="?",
        type=Path,
        const=DEFAULT_SSH_CONFIG,
        metavar="FILE",
        help=f"write a Host block for the node into FILE ({DEFAULT_SSH_CONFIG}; - prints it) and stop",
    )
    parser.add_argument("--user", default="ubuntu", help="user of the Host block (%(default)s)")
    options = parser.parse_args()
    cluster = load_slurm_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    found = read_cluster_nodes(aws_client(session, "sagemaker"), cluster.name)
    if options.list:
        print(nodes_table(found))
        return 0
    node = choose_node(found, options.node)
    command = start_session(found, node, region=cluster.region, profile=options.profile)
    if options.ssh_config:
        host = cluster.name if options.node == HEAD else f"{cluster.name}-{node.name}"
        block = host_block(host=host, user=options.user, instance_id=node.instance_id, start_session=command)
        _configure_ssh(options.ssh_config, host, block)
        return 0
    if found.status != "InService":
        print(f"note: the cluster is {found.status} {found.failure}".rstrip(), file=sys.stderr)
    if node.status != "Running":
        print(f"warning: {node.name} is {node.status} {node.message}".rstrip(), file=sys.stderr)
    print(f"{node.name} ({node.instance_id}, {node.instance_type}) ...", file=sys.stderr, flush=True)
    _become([*command, "--document-name", shell_document(cluster)])


def _configure_ssh(path: Path, host: str, block: str) -> None:
    if path == PRINT:
        print(block)
        return
    changed = write_block(path.expanduser(), host=host, block=block)
    print(f"{path}: {'wrote' if changed else 'already had'} Host {host}; connect with `ssh {host}`")
    print(
        "Your public key must be in ~/.ssh/authorized_keys on the node: append it in a `make connect` shell. "
        "After the node is replaced, run this again."
    )


def _become(command: list[str]) -> NoReturn:
    """Turn into the aws command, which then owns the terminal and its signals."""
    check_programs()
    os.execvp(command[0], command)


if __name__ == "__main__":
    run_command(main)
