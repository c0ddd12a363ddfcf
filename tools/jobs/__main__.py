"""Jobs on a cluster: ``python -m tools.jobs submit|status|tail|cancel|fetch --cluster FILE``.

The cluster file says whether Slurm or Kubernetes places them. It works from anywhere, and on the cluster.
"""

import argparse
import sys
from pathlib import Path

from config.eks_cluster import EksCluster
from config.reading.loader import load_cluster, load_eks_cluster, load_slurm_cluster
from seqlm.runs.run_file import load_config, run_file_path
from seqlm.runs.stages import STAGES
from tools.command_line import cluster_parser, run_command
from tools.jobs.code_version import code_revision
from tools.jobs.kubernetes.jobs import KubernetesJobs
from tools.jobs.scheduler import Scheduler
from tools.jobs.slurm.jobs import SlurmJobs
from tools.jobs.work import NamedRun
from tools.json_output import add_json_option

SUBMIT = "submit"
COMMANDS = {
    SUBMIT: "Submit a stage of a run. Prints the job, and where its log, metrics and report are.",
    "status": "Show jobs, and how far they are.",
    "tail": "Follow the log of a job until it ends.",
    "cancel": "Have a job save and end.",
    "fetch": "Bring report, results, model and tables of a job.",
}
LOADERS = {None: load_cluster, "slurm": load_slurm_cluster, "eks": load_eks_cluster}


def main() -> int:
    command, *words = sys.argv[1:] or ["--help"]
    parser = _parser(COMMANDS.get(command, __doc__))
    if command not in COMMANDS:
        parser.add_argument("command", choices=COMMANDS)
        parser.parse_args([command])
    known, _ = _parser("", add_help=False).parse_known_args(words)
    cluster = LOADERS[known.target](known.cluster)
    scheduler = KubernetesJobs(cluster) if isinstance(cluster, EksCluster) else SlurmJobs(cluster)
    parser.prog += f" {command}"
    scheduler.add_options(parser)
    add_json_option(parser)
    if command == SUBMIT:
        _add_submit_options(parser, scheduler)
        # Options may stand between the overrides.
        options = parser.parse_intermixed_args(words)
        return scheduler.submit(named_run(options), options, version=code_revision())
    parser.add_argument(
        "job", nargs="?", default="", help="job id that submit printed; by default the last one"
    )
    parser.add_argument(
        "--to", type=Path, default=Path("runs"), help="folder to fetch to (%(default)s)"
    )
    scheduler.add_follow_options(parser)
    options = parser.parse_args(words)
    if command == "cancel" and not options.job:
        raise ValueError("cancel: name the job, make cancel JOB=<job>; make status lists them")
    return scheduler.follow_up(command, options)


def _parser(description: str | None, *, add_help: bool = True) -> argparse.ArgumentParser:
    parser = cluster_parser(description or "", add_help=add_help)
    parser.add_argument(
        "--target", choices=[name for name in LOADERS if name], help="required scheduler"
    )
    return parser


def _add_submit_options(parser: argparse.ArgumentParser, scheduler: Scheduler) -> None:
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument(
        "--config", type=Path, help="YAML file of the run, or name of a bundled one"
    )
    parser.add_argument("--nodes", help=scheduler.nodes_help)
    parser.add_argument("--image", help=scheduler.image_help)
    parser.add_argument(
        "--gpus-per-node", type=int, help="GPUs per node; by default all; 0 uses CPUs"
    )
    parser.add_argument(
        "--hang-seconds",
        type=int,
        default=scheduler.hang_seconds,
        help="seconds without progress after which a job counts as hung (%(default)s)",
    )
    scheduler.add_submit_options(parser)
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")


def named_run(options: argparse.Namespace) -> NamedRun | None:
    """Return the run with its overrides, and the text of its file; None for a stage without a run file.

    Raises:
        ValueError: if --config is missing, not allowed for this stage, or invalid.
    """
    path: Path | None = options.config
    if not STAGES[options.stage].reads_run_file:
        if path:
            raise ValueError(f"--config: got {path}; the {options.stage} job runs no training")
        return None
    if not path:
        raise ValueError(f"--config: name the YAML file of the run to {options.stage}")
    return NamedRun(load_config(path, options.overrides), run_file_path(path).read_text())


if __name__ == "__main__":
    run_command(main)
