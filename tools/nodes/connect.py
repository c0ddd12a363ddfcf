"""Open a shell on a node through Session Manager, or configure kubectl: ``python -m tools.nodes.connect
[NODE]``.

NODE is a group with one node, ``<group>-<n>``, a host name as Slurm or Kubernetes shows it, or an instance
id. The default is ``head`` on Slurm, and a kubeconfig on EKS. Nodes have no public address and no open port.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import boto3

from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.reading.loader import load_cluster
from config.resource_names import ResourceNames, job_namespaces
from manifests.charts import CACHE
from seqlm.training.whole_file import write_whole
from tools.aws_session import aws_client, open_session
from tools.command_line import cluster_parser, run_command
from tools.json_output import add_json_option, is_recording, publish
from tools.kubernetes.kubectl import (
    REPOSITORY,
    Kubectl,
    Manifest,
    Refused,
    find_program,
    kubeconfig_of,
)
from tools.nodes.cluster_nodes import (
    HEAD,
    ClusterNodes,
    Node,
    choose_node,
    nodes_table,
    read_cluster_nodes,
)
from tools.nodes.node_session import check_programs, start_session

DEFAULT_SSH_CONFIG = Path("~/.ssh/config")
PRINT = Path("-")
"""File name that stands for standard output."""
PRIVATE = 0o600
"""Permissions of new files: only their owner can read them."""
DEFAULT_TUNNEL_PORT = 8443
FORWARD = "AWS-StartPortForwardingSessionToRemoteHost"
"""Session document that forwards a local port to a host that the node reaches."""
HTTPS = "443"
NODE_USERS = {"slurm": "ubuntu", "eks": "ec2-user"}
"""User of HyperPod's image, by scheduler; the images are Ubuntu and Amazon Linux."""
INTERACTIVE = "AWS-StartInteractiveCommand"
"""Session document of AWS that runs a command. AWS documents it for HyperPod's nodes."""
AS_NODE_USER = {"command": [f"sudo --login --user {NODE_USERS['slurm']}"]}
"""Parameters of that document, which starts commands as a user with sudo."""


def main() -> int:
    options = _options()
    if is_recording() and not options.list:
        raise ValueError(
            "--json: got no --list; only the list of nodes has a JSON form; add --list"
        )
    cluster = load_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    if isinstance(cluster, EksCluster):
        if options.plain_document:
            raise ValueError("--plain-document: an EKS cluster has no document of its own; omit it")
        if options.tunnel:
            return _open_tunnel(cluster, session, options)
        if not (options.node or options.list or options.ssh_config):
            return _connect_kubectl(cluster, options)
    elif options.kubeconfig:
        raise ValueError("--kubeconfig: a Slurm cluster has no Kubernetes; omit it")
    elif options.tunnel:
        raise ValueError("--tunnel: a Slurm cluster has no Kubernetes; omit it")
    found = read_cluster_nodes(aws_client(session, "sagemaker"), cluster.name)
    if options.list:
        publish(
            cluster=cluster.name,
            nodes=[
                {
                    "name": node.name,
                    "host_name": node.host_name,
                    "instance_id": node.instance_id,
                    "instance_type": node.instance_type,
                    "status": node.status,
                }
                for node in found.nodes
            ],
        )
        print(nodes_table(found))
        return 0
    return _connect_node(cluster, session, found, options)


def _options() -> argparse.Namespace:
    parser = cluster_parser(
        "Open a shell on a node, list nodes, or configure ssh for one or kubectl for all."
    )
    parser.add_argument(
        "node",
        nargs="?",
        help=f"node, group, host name or instance id (default: {HEAD} on Slurm, none on EKS)",
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
    parser.add_argument(
        "--plain-document",
        action="store_true",
        help=f"on Slurm: use AWS's document {INTERACTIVE}, if the cluster's own is refused",
    )
    parser.add_argument(
        "--user",
        help="user in the Host block (default: ubuntu or ec2-user, the user of the nodes' image)",
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="on EKS: file for the kubeconfig (default ~/.kube/<cluster>; - prints it)",
    )
    parser.add_argument(
        "--tunnel",
        nargs="?",
        type=int,
        const=DEFAULT_TUNNEL_PORT,
        metavar="PORT",
        help="on EKS: forward this local port (%(const)s) to the API server through a node, until Ctrl-C",
    )
    add_json_option(parser)
    return parser.parse_args()


def _connect_kubectl(cluster: EksCluster, options: argparse.Namespace) -> int:
    """Write a kubeconfig and list the nodes; return 1 if the cluster cannot be reached from this machine."""
    config = standing_kubeconfig(cluster, options.profile)
    if options.kubeconfig == PRINT:
        print(json.dumps(config, indent=2))
        return 0
    path = _write_kubeconfig(cluster, config, options.kubeconfig)
    answers = show_nodes(cluster, path)
    print(f"\nUse it in this shell:\n  export KUBECONFIG={shlex.quote(str(path))}")
    if not answers and cluster.kubernetes.endpoint == "private":
        print(
            "From outside the VPC: make connect ARGS=--tunnel reaches a private API server through a node"
        )
    print("A shell on a node: make connect NODE=<group>-<n>; all of them: make connect ARGS=--list")
    return 0 if answers else 1


def _write_kubeconfig(cluster: EksCluster, config: Manifest, wanted: Path | None) -> Path:
    """Write a separate file, so that the user's own configuration does not change, and return its path."""
    default = Path.home() / ".kube" / ResourceNames(cluster).kubernetes_cluster
    path = (wanted or default).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(config, indent=2) + "\n", mode=PRIVATE)
    name = ResourceNames(cluster).kubernetes_cluster
    print(f"{path}: access to EKS cluster {name}, with your AWS credentials of the time of use")
    return path


def _open_tunnel(cluster: EksCluster, session: boto3.Session, options: argparse.Namespace) -> int:
    """Write a kubeconfig for a local port, and forward the port to the API server through a node."""
    check_programs()
    config = standing_kubeconfig(cluster, options.profile)
    server = config["clusters"][0]["cluster"]
    host = server["server"].removeprefix("https://")
    # kubectl verifies the certificate of the API server, not of the local port.
    server |= {"server": f"https://127.0.0.1:{options.tunnel}", "tls-server-name": host}
    found = read_cluster_nodes(aws_client(session, "sagemaker"), cluster.name)
    node = choose_node(found, options.node) if options.node else _any_running(found)
    path = _write_kubeconfig(cluster, config, options.kubeconfig)
    print(f"In another shell:\n  export KUBECONFIG={shlex.quote(str(path))}")
    print(
        f'Jobs: ARGS="--kubeconfig {path}". Ctrl-C here ends the tunnel through {node.name}',
        flush=True,
    )
    ports = {"host": [host], "portNumber": [HTTPS], "localPortNumber": [str(options.tunnel)]}
    command = start_session(found, node, region=cluster.region, profile=options.profile)
    command += ["--document-name", FORWARD, "--parameters", json.dumps(ports)]
    os.execvp(command[0], command)


def _any_running(found: ClusterNodes) -> Node:
    for node in found.nodes:
        if node.status == "Running":
            return node
    raise ValueError(
        f"{found.cluster_name} has no running node to reach its API server through; see make logs"
    )


def _connect_node(
    cluster: AnyCluster, session: boto3.Session, found: ClusterNodes, options: argparse.Namespace
) -> int:
    if options.node is None and cluster.scheduler == "eks":
        raise ValueError(
            "name a node, because an EKS cluster has no head node; the nodes of "
            f"{cluster.name} are {', '.join(node.name for node in found.nodes) or 'none yet'}"
        )
    wanted = options.node or HEAD
    node = choose_node(found, wanted)
    command = start_session(found, node, region=cluster.region, profile=options.profile)
    if options.ssh_config:
        host = cluster.name if wanted == HEAD else f"{cluster.name}-{node.name}"
        user = options.user or NODE_USERS[cluster.scheduler]
        block = host_block(
            host=host, user=user, instance_id=node.instance_id, start_session=command
        )
        _give_block(options.ssh_config, host=host, block=block)
        return 0
    if found.status != "InService":
        print(f"note: the cluster is {found.status} {found.failure}".rstrip(), file=sys.stderr)
    if node.status != "Running":
        print(f"warning: {node.name} is {node.status} {node.message}".rstrip(), file=sys.stderr)
    print(
        f"{node.name} ({node.instance_id}, {node.instance_type}) ...", file=sys.stderr, flush=True
    )
    if options.plain_document:
        command += ["--document-name", INTERACTIVE, "--parameters", json.dumps(AS_NODE_USER)]
    elif cluster.scheduler == "slurm":
        # The document starts the shell as the nodes' user. On EKS, people need no user's home.
        command += ["--document-name", ResourceNames(cluster).shell_document]
    check_programs()
    # The aws command replaces this process, and receives the terminal and its signals.
    os.execvp(command[0], command)


def _give_block(path: Path, *, host: str, block: str) -> None:
    """Print a Host block, or write it into the file and print how to use it."""
    if path == PRINT:
        print(block)
        return
    done = "wrote" if write_block(path.expanduser(), host=host, block=block) else "already had"
    print(f"{path}: {done} Host {host}; connect with `ssh {host}`")
    print(
        "Your public key must be in ~/.ssh/authorized_keys on the node: append it in a `make connect` "
        "shell. After the node is replaced, run this again."
    )


def host_block(*, host: str, user: str, instance_id: str, start_session: Sequence[str]) -> str:
    """Return the Host block of a node behind Session Manager.

    Args:
        host: name of the host in the block.
        user: user on the node.
        instance_id: id of the node's instance, under which ssh stores its key.
        start_session: command that starts a session, without a document.
    """
    proxy = [
        *start_session,
        "--document-name",
        "AWS-StartSSHSession",
        "--parameters",
        "portNumber=%p",
    ]
    return "\n".join(
        [
            f"Host {host}",
            f"    User {user}",
            f"    ProxyCommand {shlex.join(proxy)}",
            # A replaced node has the same name and another key.
            f"    HostKeyAlias {instance_id}",
            "    StrictHostKeyChecking accept-new",
            "    ServerAliveInterval 60",
        ]
    )


def with_block(text: str, *, host: str, block: str) -> str:
    """Return the file's text with the host's block in the place of an older one, or at the start.

    A new block is at the start, because ssh uses the first value that it finds. Below a ``Host *``, that
    would be the value for all hosts.
    """
    start = f"# >>> hyperpod {host}"
    end = f"# <<< hyperpod {host}"
    marked = f"{start}\n{block}\n{end}\n"
    pattern = re.compile(rf"^{re.escape(start)}\n.*?^{re.escape(end)}\n", re.MULTILINE | re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: marked, text, count=1)
    return f"{marked}\n{text}" if text else marked


def write_block(path: Path, *, host: str, block: str) -> bool:
    """Put the block into the file, and return False if the file already had it.

    The former file is kept as ``<name>.bak``. The new file has the former one's permissions.
    """
    # Follow a link, so that a configuration stored elsewhere stays there.
    path = path.resolve()
    before = path.read_text() if path.exists() else ""
    after = with_block(before, host=host, block=block)
    if after == before:
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = PRIVATE
    if path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
        write_whole(path.with_name(path.name + ".bak"), before, mode=PRIVATE)
    write_whole(path, after, mode=mode)
    return True


def standing_kubeconfig(cluster: EksCluster, profile: str | None) -> Manifest:
    """Return a kubeconfig that works in any folder, with the namespace of jobs if there is only one.

    Raises:
        ValueError: if the cluster does not exist.
    """
    config = kubeconfig_of(cluster, profile)
    for user in config["users"]:
        # This checkout's program creates the tokens.
        user["user"]["exec"]["env"] = [{"name": "PYTHONPATH", "value": str(REPOSITORY)}]
    namespaces = job_namespaces(cluster)
    if len(namespaces) == 1:
        for context in config["contexts"]:
            context["context"]["namespace"] = namespaces[0]
    return config


def show_nodes(cluster: EksCluster, path: Path) -> bool:
    """Print the cluster's nodes, and return whether the cluster answered."""
    on_path = shutil.which("kubectl")
    program = Path(on_path) if on_path else find_program("kubectl", CACHE)
    if program is None:
        print("kubectl is missing; install kubectl 1.33 or later", file=sys.stderr)
        return False
    if not on_path:
        print(f"kubectl is not on the PATH; this one can be used: {program}", file=sys.stderr)
    name = ResourceNames(cluster).kubernetes_cluster
    kubectl = Kubectl(program, path, "default", f"EKS cluster {name}")
    try:
        print(kubectl.run("get", "nodes"), end="")
    except Refused as error:
        print(f"warning: {error}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    run_command(main)
