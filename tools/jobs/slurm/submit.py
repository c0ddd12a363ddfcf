"""Submit a stage to Slurm: ``python -m tools.jobs.slurm.submit STAGE --config RUN [key=value ...]``.

From a machine of the cluster, or from anywhere through Session Manager. Prints the job and where its log,
metrics and report are.
"""

from __future__ import annotations

import argparse
import getpass
import json
from dataclasses import fields
from typing import Any

from config.reading.loader import load_slurm_cluster
from tools.command_line import run_command
from tools.jobs.bandwidth import bandwidth_request
from tools.jobs.command import code_revision, named_run, print_found, stage_parser
from tools.jobs.slurm import code_version
from tools.jobs.slurm.request import Wanted, default_folder, job_request, job_user
from tools.nodes.head_node import HeadNode, find_head_node, slurm_is_here

SUBMIT_MODULE = "workloads.launch.slurm_submit"
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
    options = _options()
    cluster = load_slurm_cluster(options.cluster)
    user = job_user(cluster, options.user, getpass.getuser() if slurm_is_here() else None)
    folder = options.folder or default_folder(cluster, user)
    given = vars(options) | {"image": options.image or None, "folder": folder}
    wanted = Wanted(**{field.name: given[field.name] for field in fields(Wanted)})
    run, version = named_run(options), code_revision()
    if run is None:
        request = bandwidth_request(cluster, options.overrides, wanted, version=version)
    else:
        request = job_request(cluster, *run, options.overrides, wanted, version=version)
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
    print_found(found, follow=f"make tail JOB={found['job']}, make status, make fetch JOB={found['job']}")
    return 0


def _options() -> argparse.Namespace:
    parser = stage_parser(
        "Submit a stage of a run to the cluster's Slurm.",
        nodes="a number or a range (2-3); else all of the partition to train, 1 for the rest",
        image="container: a .sqsh file on the shared file system, or a reference",
        hang_seconds=Wanted.hang_seconds,
    )
    parser.add_argument("--partition", help="the first one with GPUs")
    parser.add_argument("--time", help="limit, as Slurm takes it: 2-00:00:00")
    parser.add_argument("--python", help="instead of an image: Python of an environment that all nodes see")
    parser.add_argument("--user", help="whose job it is, when submitted from outside of the cluster")
    return parser.parse_intermixed_args()


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
