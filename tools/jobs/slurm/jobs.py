"""Jobs of Slurm, from a machine of the cluster, or from anywhere through Session Manager."""

import argparse
import getpass
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile

from config.node_settings import HOME_MOUNT_PATH
from config.slurm_cluster import SlurmCluster
from tools.jobs import code_version
from tools.jobs.delivery import Delivery
from tools.jobs.scheduler import Scheduler, print_found
from tools.jobs.slurm.job_list import read_status
from tools.jobs.slurm.request import SlurmWanted, job_request, job_user, user_folder
from tools.jobs.work import NamedRun
from tools.json_output import LAST_LINES, publish, publish_error, publish_lines
from tools.nodes.activity import print_activity
from tools.nodes.head_node import find_head_node, slurm_is_here
from tools.nodes.node_session import BrokenSession
from tools.training_plans.used_plans import print_plans

PROGRAM = Path(__file__).with_name("jobs_on_cluster.sh")
FETCH = Path(__file__).parents[1] / "fetch_run.sh"
LARGEST_MIB = 200
"""Largest model or table through a session, at about 1 MB/s."""
COPY_INSTEAD = (
    "copy it below the data bucket's folder of the shared file system, from where it is exported to S3 "
    "(docs/training-on-slurm.md)"
)
# Root creates a folder for the user where no one else can create one: below the mount point itself.
_MAKE_FOLDER = """
set -euo pipefail
top="$1/$2"
[[ -e "$top" ]] || install --directory --owner="$2" --group="$(id --group --name "$2")" "$top"
"""
# A version's folder is named by its hash. The link `workloads` gives it the name that jobs expect.
_WITH_CODE = """
set -euo pipefail
export PYTHONPATH="$1/workloads"
mkdir -p "$1"
ln --symbolic --force --no-target-directory "$2" "$1/workloads"
shift 2
exec "$@"
"""


class SlurmJobs(Scheduler):
    nodes_help = "number or range of nodes (2-3); by default all of the partition to train, else 1"
    image_help = "container image: a .sqsh file on the shared file system, or a reference"
    hang_seconds = SlurmWanted.hang_seconds

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--user", help="user of the jobs, if this runs outside of the cluster")
        parser.add_argument(
            "--folder", help="folder of runs, data and downloads on the shared file system"
        )

    def add_submit_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--partition", help="partition; by default the first one with GPUs")
        parser.add_argument(
            "--capacity",
            metavar="KINDS",
            help="kinds of nodes if the partition has several: plan, on_demand, spot, with commas between",
        )
        parser.add_argument("--time", help="time limit in Slurm's form, such as 2-00:00:00")
        parser.add_argument(
            "--python", help="Python of an environment that all nodes see, instead of an image"
        )

    def submit(self, run: NamedRun | None, options: argparse.Namespace, *, version: str) -> int:
        cluster = self._cluster
        user, folder = self._place(options)
        wanted = SlurmWanted.of(options, image=options.image or None, folder=folder)
        request = job_request(cluster, run, options.overrides, wanted, version=version)
        head = find_head_node(cluster, options.profile)
        if head.is_here:
            code = code_version.copy_here(cluster, folder)
        else:
            code = code_version.bring(cluster, head, options.profile)
            refusal: list[str] = []
            top = cluster.storage.lustre.mount_path if cluster.storage.lustre else HOME_MOUNT_PATH
            if folder.startswith(f"{top}/{user}/") and head.run_as_root(
                _MAKE_FOLDER, [top, user], refusal.append
            ):
                raise ValueError(f"{head.name}: {top}/{user} cannot be made: " + "\n".join(refusal))
        named = f"{folder}/code/{code_version.code_hash()}"
        request["job"]["code"] = named
        command = ["bash", "-c", _WITH_CODE, "submit", named, code]
        command += ["python3", "-s", "-B", "-m", "seqlm.launch.slurm_submit", json.dumps(request)]
        said: list[str] = []
        if head.run(user, command, said.append):
            raise ValueError("\n".join(said).removeprefix("error: "))
        found = json.loads(said[-1])
        print_found(
            found,
            follow=(
                f"make tail JOB={found['job']}",
                "make status",
                f"make fetch JOB={found['job']}",
            ),
        )
        return 0

    def follow_up(self, command: str, options: argparse.Namespace) -> int:
        user, folder = self._place(options)
        head = find_head_node(self._cluster, options.profile)
        program = [
            "bash",
            "-c",
            FETCH.read_text() + PROGRAM.read_text(),
            PROGRAM.name,
            command,
            folder,
        ]
        if command == "fetch":
            with TemporaryFile() as archive:
                delivery = Delivery(archive)
                status = head.run(user, [*program, options.job, str(LARGEST_MIB)], delivery.take)
                return delivery.unpack(options.to, status=status, instead=COPY_INSTEAD)
        said: deque[str] = deque(maxlen=LAST_LINES)

        def show(line: str) -> None:
            said.append(line)
            print(line, flush=True)

        try:
            status = head.run(user, [*program, options.job], show)
        except BrokenSession as error:
            raise ValueError(f"{error}; the jobs continue") from None
        if status:
            publish_error(_failure(said))
        if command != "status":
            publish_lines("lines")
        elif not status:
            publish(**asdict(read_status(said)))
        # Nodes have no permission to read the cluster's operations and events, and training plans.
        if command == "status" and not head.is_here:
            print_activity(self._cluster, options.profile)
            print_plans(self._cluster, options.profile)
        return status

    def _place(self, options: argparse.Namespace) -> tuple[str, str]:
        """Return the jobs' user, and their folder."""
        user = job_user(self._cluster, options.user, getpass.getuser() if slurm_is_here() else None)
        return user, options.folder or user_folder(self._cluster, user)


def _failure(lines: Iterable[str]) -> str:
    """Return the message about an error in the output of a program that failed, which is its last line."""
    *_, last = ["the program on the cluster printed no message", *filter(str.strip, lines)]
    return last.removeprefix("error: ")
