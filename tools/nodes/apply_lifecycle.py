"""The deployed lifecycle scripts, run again on the nodes of a cluster that exists.

``python -m tools.nodes.apply_lifecycle``: on the controller, which runs them on all workers through Slurm,
and then on each login node. Exit status 0 if all nodes are done, 1 if some are not.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from config.content_hash import content_hash
from config.node_settings import node_settings_text
from config.reading.loader import load_slurm_cluster
from config.resource_names import stack_names
from config.slurm_cluster import SlurmCluster
from tools.aws_session import aws_client, if_present, open_session
from tools.command_line import cluster_parser, run_command
from tools.nodes.cluster_nodes import UNREACHABLE, ClusterNodes, Node, choose_node, read_cluster_nodes
from tools.nodes.node_session import BrokenSession, NoSession, check_programs, run_on_node, start_session

SCRIPTS = Path(__file__).parents[2] / "lifecycle" / "slurm"
FETCH_AND_RUN = SCRIPTS / "run_from_s3.sh"
SOURCE_OUTPUT = "LifecycleSourceS3Uri"
SET_UP_ONE_NODE = ("env", "SECONDS_TO_SHIP_LOG=0", "bash", "on_init_complete.sh")
LOG = "/var/log/provision/provisioning.log"
"""On the controller; apply_to_cluster.py writes to it."""
WORKERS_UNDONE = 3
"""With which apply_to_cluster.py ends when the controller is done and some workers are not."""
NOT_BEGUN = 254
BROKEN = 255
"""Instead of a script's status, where none came back."""
Connect = Callable[[Node], list[str]]


def main() -> int:
    parser = cluster_parser("Run the deployed lifecycle scripts on the nodes that are there already.")
    parser.add_argument(
        "--nodes", help="of the workers only these, by host name as sinfo shows it, with commas between"
    )
    parser.add_argument(
        "--wait-minutes", type=float, metavar="N", help="how long jobs on a worker may keep it waiting (10)"
    )
    options = parser.parse_args()
    cluster = load_slurm_cluster(options.cluster)
    check_programs()
    session = open_session(region=cluster.region, profile=options.profile)
    source = deployed_scripts(aws_client(session, "cloudformation"), cluster)
    if not source.endswith(f"/{checkout_hash(cluster)}"):
        print(
            f"note: what is deployed is applied, {source}; the scripts or the cluster file here are others. "
            "`make deploy` first if you mean those.",
            file=sys.stderr,
        )
    found = read_cluster_nodes(aws_client(session, "sagemaker"), cluster.name)
    connect = partial(start_session, found, region=cluster.region, profile=options.profile)
    try:
        undone = _apply(cluster, found, connect, source, options)
    except KeyboardInterrupt:
        print(
            "\nno longer watching; runs on nodes continue, and further nodes are started by the "
            f"controller: {LOG} there has it",
            file=sys.stderr,
        )
        raise
    for name in undone:
        print(f"NOT DONE: {name}", file=sys.stderr)
    return 1 if undone else 0


def deployed_scripts(cloudformation: Any, cluster: SlurmCluster) -> str:
    """Return the S3 address of the scripts that new nodes run.

    Raises:
        ValueError: if no stack has said so yet.
    """
    name = stack_names(cluster).hyperpod
    described = if_present(cloudformation.describe_stacks, StackName=name)
    if described is None:
        raise ValueError(f"there is no stack {name} in {cluster.region}; `make deploy` makes it")
    stack = described["Stacks"][0]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
    if SOURCE_OUTPUT not in outputs:
        raise ValueError(
            f"stack {name} is {stack['StackStatus']} and has no output {SOURCE_OUTPUT}; wait for its end, or "
            "`make deploy` again"
        )
    return str(outputs[SOURCE_OUTPUT])


def checkout_hash(cluster: SlurmCluster) -> str:
    """The hash under which a deployment from here would upload the scripts."""
    return content_hash(SCRIPTS, {"settings.json": node_settings_text(cluster)})


def _apply(
    cluster: SlurmCluster, found: ClusterNodes, connect: Connect, source: str, options: argparse.Namespace
) -> list[str]:
    """Returns what is not done: nodes, or `some workers`, which the controller has named."""
    roles = {group.name: group.role for group in cluster.instance_groups}
    (controller_group,) = (name for name, role in roles.items() if role == "controller")
    controller = choose_node(found, controller_group)
    chosen = ["--nodes", options.nodes] if options.nodes else []
    patience = ["--wait-minutes", f"{options.wait_minutes:g}"] if options.wait_minutes is not None else []
    status = _run(
        connect(controller),
        controller,
        *(cluster.region, source, "python3", "-s", "-B", "apply_to_cluster.py", "--source", source),
        *(*chosen, *patience),
    )
    if status == BROKEN:
        return [
            f"{controller.name}, as far as is known here: {LOG} on it says how it and the workers end. Login "
            "nodes were not begun: repeat this command then"
        ]
    if status not in (0, WORKERS_UNDONE):
        more = "" if status == NOT_BEGUN else f"; {LOG} on it has more"
        return [f"{controller.name}, and so no other node was begun{more}"]
    undone = ["some workers, see above"] if status else []
    for node in found.nodes:
        if roles.get(node.group) != "login":
            continue
        if node.status in UNREACHABLE:
            undone.append(f"{node.name}: it is {node.status} {node.message}".rstrip())
        elif _run(connect(node), node, cluster.region, source, *SET_UP_ONE_NODE) != 0:
            undone.append(f"{node.name}, see above")
    return undone


def _run(start: Sequence[str], node: Node, *arguments: str) -> int:
    print(f"{node.name} ({node.instance_id}) ...", file=sys.stderr, flush=True)
    try:
        return run_on_node(
            start,
            FETCH_AND_RUN.read_text(),
            arguments,
            lambda line: print(f"{node.name}: {line}", flush=True),
        )
    except (NoSession, BrokenSession) as error:
        print(f"{node.name}: {error}", file=sys.stderr)
        return BROKEN if isinstance(error, BrokenSession) else NOT_BEGUN


if __name__ == "__main__":
    run_command(main)
