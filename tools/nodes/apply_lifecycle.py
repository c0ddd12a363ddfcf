"""Run the deployed lifecycle scripts again on existing nodes: ``python -m tools.nodes.apply_lifecycle``.

The controller runs the scripts first on itself, and then on all workers through Slurm. After that they run on
each login node. The exit status is 0 if all nodes are done, and 1 if some are not.
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
from tools.command_line import cluster_parser, minutes, run_command
from tools.json_output import add_json_option, publish
from tools.nodes.cluster_nodes import (
    UNREACHABLE,
    ClusterNodes,
    Node,
    choose_node,
    read_cluster_nodes,
)
from tools.nodes.node_session import (
    BrokenSession,
    NoSession,
    check_programs,
    run_on_node,
    start_session,
)

SCRIPTS = Path(__file__).parents[2] / "lifecycle" / "slurm"
FETCH_AND_RUN = SCRIPTS / "run_from_s3.sh"
SETTINGS = "settings.json"
"""File with the settings of the cluster file, which is uploaded with the scripts."""
SOURCE_OUTPUT = "LifecycleSourceS3Uri"
"""Output of the stack with the S3 address of the scripts."""
SET_UP_ONE_NODE = ("env", "SECONDS_TO_SHIP_LOG=0", "bash", "on_init_complete.sh")
SET_UP_CLUSTER = ("python3", "-s", "-B", "apply_to_cluster.py")
ONLY_STEPS = {"users": "users"}
"""Steps on login nodes by the value of --only."""
LOG = "/var/log/provision/provisioning.log"
"""Log of apply_to_cluster.py on the controller."""
WORKERS_UNDONE = 3
"""Exit status of apply_to_cluster.py if the controller is done and some workers are not."""
NOT_BEGUN = 254
"""Status of a node on which the script could not be started."""
BROKEN = 255
"""Status of a node with a session that ended before the script."""
Connect = Callable[[Node], list[str]]
"""Function that returns the command for a session with a node."""


def main() -> int:
    parser = cluster_parser("Run the deployed lifecycle scripts on existing nodes.")
    parser.add_argument(
        "--nodes",
        help="workers to include, by host name as sinfo shows it, separated by commas (default: all)",
    )
    parser.add_argument(
        "--wait-minutes",
        type=minutes,
        metavar="N",
        help="longest time in minutes to wait for the end of jobs on a worker (default: 10)",
    )
    parser.add_argument(
        "--only",
        choices=tuple(ONLY_STEPS),
        help="run only the steps for users, and drain no node (default: all steps)",
    )
    add_json_option(parser)
    options = parser.parse_args()
    cluster = load_slurm_cluster(options.cluster)
    check_programs()
    session = open_session(region=cluster.region, profile=options.profile)
    source = deployed_scripts(aws_client(session, "cloudformation"), cluster)
    if not source.endswith(f"/{checkout_hash(cluster)}"):
        print(
            f"note: the deployed scripts are applied, {source}. The scripts or the cluster file here differ; "
            "to apply these, run `make deploy` first.",
            file=sys.stderr,
        )
    found = read_cluster_nodes(aws_client(session, "sagemaker"), cluster.name)
    connect = partial(start_session, found, region=cluster.region, profile=options.profile)
    try:
        undone = _apply(cluster, found, connect, source, options)
    except KeyboardInterrupt:
        print(
            "\nno longer watching; runs on nodes continue, and the controller starts further workers: see "
            f"{LOG} there",
            file=sys.stderr,
        )
        raise
    publish(source=source, undone=undone)
    for name in undone:
        print(f"NOT DONE: {name}", file=sys.stderr)
    return 1 if undone else 0


def deployed_scripts(cloudformation: Any, cluster: SlurmCluster) -> str:
    """Return the S3 address of the scripts that new nodes run.

    Raises:
        ValueError: if the stack does not exist, or is not deployed completely.
    """
    name = stack_names(cluster).hyperpod
    described = if_present(cloudformation.describe_stacks, StackName=name)
    if described is None:
        raise ValueError(f"there is no stack {name} in {cluster.region}; `make deploy` creates it")
    stack = described["Stacks"][0]
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}
    if SOURCE_OUTPUT not in outputs:
        raise ValueError(
            f"stack {name} is {stack['StackStatus']} and has no output {SOURCE_OUTPUT}; wait for its end, or "
            "`make deploy` again"
        )
    return str(outputs[SOURCE_OUTPUT])


def checkout_hash(cluster: SlurmCluster) -> str:
    """Return the hash under which a deployment of this checkout would upload the scripts."""
    return content_hash(SCRIPTS, {SETTINGS: node_settings_text(cluster)})


def _apply(
    cluster: SlurmCluster,
    found: ClusterNodes,
    connect: Connect,
    source: str,
    options: argparse.Namespace,
) -> list[str]:
    """Run the scripts on all nodes.

    Returns:
        A text per node that is not done. Workers share one text, because the controller names them.
    """
    roles = {group.name: group.role for group in cluster.instance_groups}
    (controller_group,) = (name for name, role in roles.items() if role == "controller")
    controller = choose_node(found, controller_group)
    arguments = ["--source", source]
    if options.nodes:
        arguments += ["--nodes", options.nodes]
    if options.wait_minutes is not None:
        arguments += ["--wait-minutes", f"{options.wait_minutes:g}"]
    set_up_one_node = [*SET_UP_ONE_NODE]
    if options.only:
        arguments += ["--only", options.only]
        set_up_one_node.insert(1, f"NODE_SETUP_STEPS={ONLY_STEPS[options.only]}")
    status = _run(
        connect(controller), controller, cluster.region, source, *SET_UP_CLUSTER, *arguments
    )
    if status == BROKEN:
        return [
            f"{controller.name}, as far as is known here: {LOG} on it has the result for it and the workers. "
            "Nothing ran on login nodes: repeat this command after that"
        ]
    if status not in (0, WORKERS_UNDONE):
        details = "" if status == NOT_BEGUN else f"; {LOG} on it has details"
        return [f"{controller.name}, so that nothing ran on other nodes{details}"]
    undone = ["some workers, see above"] if status else []
    for node in found.nodes:
        if roles.get(node.group) != "login":
            continue
        if node.status in UNREACHABLE:
            undone.append(f"{node.name}: it is {node.status} {node.message}".rstrip())
        elif _run(connect(node), node, cluster.region, source, *set_up_one_node) != 0:
            undone.append(f"{node.name}, see above")
    return undone


def _run(start: Sequence[str], node: Node, *arguments: str) -> int:
    """Fetch the scripts on a node and run a command in their folder; return its status."""
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
