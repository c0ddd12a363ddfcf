"""A way onto a cluster: a shell on a node through Session Manager, or kubectl.

``python -m tools.nodes.connect [NODE]``: without a node, on Slurm ``head``, on EKS a kubeconfig. A node is a
group with one node, ``<group>-<n>``, a host name as Slurm or Kubernetes shows it, or an instance id. Nodes
have no public address and no open port.
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
from tools.aws_session import aws_client, open_session
from tools.command_line import cluster_parser, run_command
from tools.kubernetes.kubectl import REPOSITORY, Kubectl, Manifest, Refused, find_program, kubeconfig_of
from tools.nodes.cluster_nodes import HEAD, ClusterNodes, choose_node, nodes_table, read_cluster_nodes
from tools.nodes.node_session import check_programs, start_session

DEFAULT_SSH_CONFIG = Path("~/.ssh/config")
PRINT = Path("-")
FORWARD = "AWS-StartPortForwardingSessionToRemoteHost"
"""Session document that forwards a local port to a host that the node reaches."""
HTTPS = "443"
NODE_USERS = {"slurm": "ubuntu", "eks": "ec2-user"}
"""Users of HyperPod's images, by scheduler: Ubuntu, and Amazon Linux."""


def main() -> int:
    options = _options()
    cluster = load_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    if isinstance(cluster, EksCluster):
        if options.tunnel:
            return _open_tunnel(cluster, session, options)
        if not (options.node or options.list or options.ssh_config):
            return _connect_kubectl(cluster, options)
    elif option := "--kubeconfig" if options.kubeconfig else "--tunnel" if options.tunnel else None:
        raise ValueError(f"{option}: a Slurm cluster has no Kubernetes; omit it")
    found = read_cluster_nodes(aws_client(session, "sagemaker"), cluster.name)
    if options.list:
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
        help=f"node, group, host name or instance id (Slurm: {HEAD}; EKS: none, a kubeconfig)",
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
        "--user", help="user of the Host block (that of the nodes' image: ubuntu or ec2-user)"
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="on EKS: write the kubeconfig there (~/.kube/<cluster>; - prints it)",
    )
    parser.add_argument(
        "--tunnel",
        nargs="?",
        type=int,
        const=8443,
        metavar="PORT",
        help="on EKS: reach a private API server through a node, on this local port (8443), until Ctrl-C",
    )
    return parser.parse_args()


def _connect_kubectl(cluster: EksCluster, options: argparse.Namespace) -> int:
    """Return status 1 if the kubeconfig is written, but the cluster cannot be reached from here."""
    config = standing_kubeconfig(cluster, options.profile)
    if options.kubeconfig == PRINT:
        print(json.dumps(config, indent=2))
        return 0
    path = _write_kubeconfig(cluster, config, options.kubeconfig)
    answers = show_nodes(cluster, path)
    print(f"\nUse it in this shell:\n  export KUBECONFIG={shlex.quote(str(path))}")
    if not answers and cluster.kubernetes.endpoint == "private":
        print("From outside the VPC: make connect ARGS=--tunnel reaches a private API server through a node")
    print("A shell on a node: make connect NODE=<group>-<n>; all of them: make connect ARGS=--list")
    return 0 if answers else 1


def _write_kubeconfig(cluster: EksCluster, config: Manifest, wanted: Path | None) -> Path:
    """Write a file of its own, so that nothing in the user's configuration changes; return its path."""
    own = Path.home() / ".kube" / ResourceNames(cluster).kubernetes_cluster
    path = (wanted or own).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(path, json.dumps(config, indent=2) + "\n")
    print(f"{path}: access to EKS cluster {cluster.name}, with your AWS credentials of the time of use")
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
    running = [node for node in found.nodes if node.status == "Running"]
    if not (options.node or running):
        raise ValueError(f"{cluster.name} has no running node to reach its API server through; see make logs")
    node = choose_node(found, options.node) if options.node else running[0]
    path = _write_kubeconfig(cluster, config, options.kubeconfig)
    print(f"In another shell:\n  export KUBECONFIG={shlex.quote(str(path))}")
    print(f'Jobs: ARGS="--kubeconfig {path}". Ctrl-C here ends the tunnel through {node.name}', flush=True)
    ports = {"host": [host], "portNumber": [HTTPS], "localPortNumber": [str(options.tunnel)]}
    command = start_session(found, node, region=cluster.region, profile=options.profile)
    command += ["--document-name", FORWARD, "--parameters", json.dumps(ports)]
    os.execvp(command[0], command)


def _connect_node(
    cluster: AnyCluster, session: boto3.Session, found: ClusterNodes, options: argparse.Namespace
) -> int:
    if options.node is None and cluster.scheduler == "eks":
        raise ValueError(
            f"name a node: one node of an EKS cluster is no other's head; {cluster.name} has "
            f"{', '.join(there.name for there in found.nodes) or 'none yet'}"
        )
    wanted = options.node or HEAD
    node = choose_node(found, wanted)
    command = start_session(found, node, region=cluster.region, profile=options.profile)
    if options.ssh_config:
        host = cluster.name if wanted == HEAD else f"{cluster.name}-{node.name}"
        user = options.user or NODE_USERS[cluster.scheduler]
        block = host_block(host=host, user=user, instance_id=node.instance_id, start_session=command)
        if options.ssh_config == PRINT:
            print(block)
            return 0
        path = options.ssh_config
        done = "wrote" if write_block(path.expanduser(), host=host, block=block) else "already had"
        print(f"{path}: {done} Host {host}; connect with `ssh {host}`")
        print(
            "Your public key must be in ~/.ssh/authorized_keys on the node: append it in a `make connect` "
            "shell. After the node is replaced, run this again."
        )
        return 0
    if found.status != "InService":
        print(f"note: the cluster is {found.status} {found.failure}".rstrip(), file=sys.stderr)
    if node.status != "Running":
        print(f"warning: {node.name} is {node.status} {node.message}".rstrip(), file=sys.stderr)
    print(f"{node.name} ({node.instance_id}, {node.instance_type}) ...", file=sys.stderr, flush=True)
    if cluster.scheduler == "slurm":
        # As the nodes' user; on EKS people have no business in a user's home.
        command += ["--document-name", ResourceNames(cluster).shell_document]
    check_programs()
    # The aws command takes this one's place, and owns the terminal and its signals.
    os.execvp(command[0], command)


def host_block(*, host: str, user: str, instance_id: str, start_session: Sequence[str]) -> str:
    """A block for a node behind Session Manager; ``start_session`` is the command without a document."""
    proxy = [*start_session, "--document-name", "AWS-StartSSHSession", "--parameters", "portNumber=%p"]
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
    """The file's text with the host's block in its old place, or first; all else as it was.

    First, because ssh takes the first value it finds, which below a ``Host *`` is that one's.
    """
    start = f"# >>> hyperpod {host}"
    end = f"# <<< hyperpod {host}"
    marked = f"{start}\n{block}\n{end}\n"
    pattern = re.compile(rf"^{re.escape(start)}\n.*?^{re.escape(end)}\n", re.MULTILINE | re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: marked, text, count=1)
    return f"{marked}\n{text}" if text else marked


def write_block(path: Path, *, host: str, block: str) -> bool:
    """Put the block into the file; False if it was there already.

    The former file is kept as ``<name>.bak``; the new one appears at once and whole, with the former's mode.
    """
    path = path.resolve()  # through a link, so that a configuration kept in another place stays there
    before = path.read_text() if path.exists() else ""
    after = with_block(before, host=host, block=block)
    if after == before:
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o600
    if path.exists():
        mode = stat.S_IMODE(path.stat().st_mode)
        _write_whole(path.with_name(path.name + ".bak"), before)
    _write_whole(path, after, mode)
    return True


def _write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """Write the file at once; before that, only its owner can read it."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    partial.chmod(mode)
    partial.replace(path)


def standing_kubeconfig(cluster: EksCluster, profile: str | None) -> Manifest:
    """`kubectl.kubeconfig_of` for use from any folder, in the namespace of jobs if there is only one.

    Raises:
        ValueError: if there is no such cluster.
    """
    config = kubeconfig_of(cluster, profile)
    for user in config["users"]:
        # Tokens are made by this checkout, in its environment.
        user["user"]["exec"]["env"] = [{"name": "PYTHONPATH", "value": str(REPOSITORY)}]
    namespaces = job_namespaces(cluster)
    if len(namespaces) == 1:
        for context in config["contexts"]:
            context["context"]["namespace"] = namespaces[0]
    return config


def show_nodes(cluster: EksCluster, path: Path) -> bool:
    """Print the cluster's nodes, and return whether the cluster answered."""
    own = shutil.which("kubectl")
    program = Path(own) if own else find_program("kubectl", CACHE)
    if program is None:
        print("kubectl is missing; install kubectl 1.33 or later", file=sys.stderr)
        return False
    if not own:
        print(f"There is no kubectl on the PATH; {program} is one", file=sys.stderr)
    kubectl = Kubectl(program, path, "default", f"EKS cluster {ResourceNames(cluster).kubernetes_cluster}")
    try:
        print(kubectl.run("get", "nodes"), end="")
    except Refused as error:
        print(f"warning: {error}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    run_command(main)
