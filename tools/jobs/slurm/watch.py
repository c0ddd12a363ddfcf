"""What became of submitted jobs: ``python -m tools.jobs.slurm.watch status|tail|cancel|fetch [JOB]``.

From a machine of the cluster, or from anywhere through Session Manager. Without a job the last one is meant.
"""

from __future__ import annotations

import argparse
import getpass
from pathlib import Path
from tempfile import TemporaryFile

from config.reading.loader import load_slurm_cluster
from tools.command_line import cluster_parser, run_command
from tools.jobs.delivery import Delivery
from tools.jobs.slurm.request import default_folder, job_user
from tools.nodes.head_node import HeadNode, Say, find_head_node, slurm_is_here
from tools.nodes.node_session import BrokenSession

PROGRAM = Path(__file__).with_name("jobs_on_cluster.sh")
FETCH = Path(__file__).with_name("fetch_run.sh")
LARGEST_MIB = 200
"""Of a model or a table that comes through a session, at about 1 MB/s."""
COPY_INSTEAD = (
    "copy it below the data bucket's folder of the shared file system, from where it is exported to S3 "
    "(docs/training-on-slurm.md)"
)


def main() -> int:
    options = _options()
    cluster = load_slurm_cluster(options.cluster)
    user = job_user(cluster, options.user, getpass.getuser() if slurm_is_here() else None)
    folder = options.folder or default_folder(cluster, user)
    head = find_head_node(cluster, options.profile)
    if options.what == "fetch":
        return fetch(head, user, folder, options.job, Path(options.to))
    if options.what == "cancel" and not options.job:
        raise ValueError("cancel: name the job, make cancel JOB=<number>; make status lists them")
    try:
        return _run(head, user, options.what, folder, options.job, say=lambda line: print(line, flush=True))
    except BrokenSession as error:
        raise ValueError(f"{error}; the jobs go on") from None


def _options() -> argparse.Namespace:
    parser = cluster_parser("Look after jobs that make ... TARGET=slurm has submitted.")
    parser.add_argument("what", choices=("status", "tail", "cancel", "fetch"))
    parser.add_argument("job", nargs="?", default="", help="its number; the last one submitted, if not given")
    parser.add_argument("--user", help="whose jobs, from outside of the cluster")
    parser.add_argument("--folder", help="of runs on the shared file system, as given to submit")
    parser.add_argument("--to", default="runs", help="folder for what is fetched (%(default)s)")
    return parser.parse_args()


def _run(head: HeadNode, user: str, *arguments: str, say: Say) -> int:
    return head.run(
        user, ["bash", "-c", FETCH.read_text() + PROGRAM.read_text(), PROGRAM.name, *arguments], say
    )


def fetch(head: HeadNode, user: str, folder: str, job: str, to: Path) -> int:
    """Bring report, results and metrics, and of models and tables those that are not too large.

    Raises:
        ValueError: with what the head node says, if there is nothing to bring or it came damaged.
    """
    with TemporaryFile() as archive:
        delivery = Delivery(archive)
        status = _run(head, user, "fetch", folder, job, str(LARGEST_MIB), say=delivery.take)
        return delivery.unpack(to, status=status, instead=COPY_INSTEAD)


if __name__ == "__main__":
    run_command(main)
