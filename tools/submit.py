"""A stage of a run, submitted to the cluster: ``python -m tools.submit STAGE --config RUN [key=value ...]``.

From a machine of the cluster, or from anywhere through Session Manager. Prints the job and where its log,
metrics and report are.
"""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

from config.loader import load_slurm_cluster
from config.slurm_cluster import SlurmCluster
from tools import code_version
from tools.bandwidth_request import bandwidth_request
from tools.command_line import cluster_parser, run_command
from tools.head_node import HeadNode, find_head_node, slurm_is_here
from tools.job_request import Wanted, default_folder, job_request, job_user
from tools.source_revision import read_revision
from workloads.esm2.config import load_config
from workloads.esm2.launch.job_file import STAGES, Job

SUBMIT_MODULE = "workloads.esm2.launch.slurm_submit"
# Root makes a folder for the user where nobody else can make one: below the mount point itself.
_MAKE_FOLDER = """
set -euo pipefail
top="$1/$2"
[[ -e "$top" ]] || install --directory --owner="$2" --group="$(id --group --name "$2")" "$top"
"""


# Python finds workloads.esm2 below a folder that has a workloads, which a version's own folder is not called.
_WITH_CODE = """
set -euo pipefail
export PYTHONPATH="$1"
mkdir -p "$1"
ln --symbolic --force --no-target-directory "$2" "$1/workloads"
shift 2
exec "$@"
"""


def main() -> int:
    parser = cluster_parser("Submit a stage of a run to the cluster's Slurm.")
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--config", type=Path, help="YAML file of the run; bandwidth has none")
    parser.add_argument("--nodes", help="a number or a range (2-3); else all of the partition, 1 to evaluate")
    parser.add_argument("--partition", help="the first one with GPUs")
    parser.add_argument("--gpus-per-node", type=int, help="all that there are; 0 trains on CPUs")
    parser.add_argument("--time", help="limit, as Slurm takes it: 2-00:00:00")
    parser.add_argument(
        "--hang-seconds", type=int, default=Job.hang_seconds, help="without an advance: the job has hung"
    )
    parser.add_argument("--image", help="container: a .sqsh file on the shared file system, or a reference")
    parser.add_argument("--python", help="instead of an image: Python of an environment that all nodes see")
    parser.add_argument("--folder", help="of runs, data and downloads on the shared file system")
    parser.add_argument("--user", help="whose job it is, when submitted from outside of the cluster")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    # Options may stand between the overrides.
    options = parser.parse_intermixed_args()
    cluster = load_slurm_cluster(options.cluster)
    user = job_user(cluster, options.user, getpass.getuser() if slurm_is_here() else None)
    folder = options.folder or default_folder(cluster, user)
    wanted = Wanted(
        stage=options.stage,
        image=options.image or None,
        python=options.python,
        nodes=options.nodes,
        partition=options.partition,
        gpus_per_node=options.gpus_per_node,
        time=options.time,
        hang_seconds=options.hang_seconds,
        folder=folder,
    )
    request = _request(cluster, options.config, options.overrides, wanted)
    head = find_head_node(cluster, options.profile)
    if head.is_here:
        code = code_version.copy_here(cluster, folder)
    else:
        code = code_version.bring(cluster, head, options.profile)
        lustre = cluster.storage.lustre.mount_path
        said: list[str] = []
        if folder.startswith(f"{lustre}/{user}/") and head.run_as_root(
            _MAKE_FOLDER, [lustre, user], said.append
        ):
            raise ValueError(f"{head.name}: {lustre}/{user} cannot be made: " + "\n".join(said))
    named = f"{folder}/code/{code_version.code_hash()}"
    found = _submit(head, user, code, request | {"job": request["job"] | {"code": named}})
    for name, value in found.items():
        print(f"{name:8} {value}")
    print(f"next     make tail JOB={found['job']}, make status, make fetch JOB={found['job']}")
    return 0


def _request(
    cluster: SlurmCluster, config: Path | None, overrides: list[str], wanted: Wanted
) -> dict[str, Any]:
    version = code_revision()
    if wanted.stage == "bandwidth":
        if config:
            raise ValueError(f"--config: got {config}; the bandwidth job runs no training")
        return bandwidth_request(cluster, overrides, wanted, version=version)
    if not config:
        raise ValueError(f"--config: name the YAML file of the run to {wanted.stage}")
    run = load_config(config, overrides)
    return job_request(cluster, run, config.read_text(), overrides, wanted, version=version)


def code_revision() -> str:
    """Of the code, for checkpoints and reports: the commit, or else the contents' hash."""
    try:
        return read_revision(Path(__file__).parents[1]).tag
    except ValueError:  # no clone, or one that belongs to somebody else
        return code_version.code_hash()


def _submit(head: HeadNode, user: str, code: str, request: dict[str, Any]) -> dict[str, str]:
    said: list[str] = []
    command = ["bash", "-c", _WITH_CODE, "submit", request["job"]["code"], code]
    command += ["python3", "-s", "-B", "-m", SUBMIT_MODULE, json.dumps(request)]
    status = head.run(user, command, said.append)
    if status:
        raise ValueError("\n".join(said).removeprefix("error: "))
    found: dict[str, str] = json.loads(said[-1])
    return found


if __name__ == "__main__":
    run_command(main)
