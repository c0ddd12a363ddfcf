"""Write the files of a job and submit it to Slurm: ``python3 -m seqlm.launch.slurm_submit REQUEST``.

Run by the user on the node from which jobs are submitted, with the node's own Python. REQUEST is a JSON text:
``{"config": TEXT, "job": {fields of Job}, "sbatch": [options]}``. The output is a JSON line with the job's id
and the paths of its log and results.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

from seqlm.runs.stages import STAGES
from seqlm.training.tracking.metrics_port import SLURM_COMMENT
from seqlm.training.whole_file import move_into_place

from .job_file import CONFIG_FILE, Job, job_of

SBATCH_FILE = Path(__file__).with_name("train.sbatch")
JOBS = "jobs"
"""Folder within the work folder, with a link for each job to the job's folder."""
LEAST_FREE_BYTES = 512 << 20
"""Free space that a run needs at least: three checkpoints of ESM-2 8M, the smallest model, with 12 bytes per
parameter."""
SBATCH_SECONDS = 120
"""Time limit of ``sbatch``, because a busy controller is slow."""
KEPT_VARIABLES = ("HOME", "LANG", "LOGNAME", "PATH", "USER")
"""Variables that a job gets from the shell of its submission. It does not depend on any others."""


def submit(config: str, job: Job, sbatch_options: list[str]) -> dict[str, str]:
    """Submit a job.

    Args:
        config: text of the run file.
        job: description of the job.
        sbatch_options: further options of ``sbatch``.

    Returns:
        The job's id, and the paths of its log and results by name.

    Raises:
        ValueError: if a file that the job reads is missing, if the job's folder cannot be created or has too
            little free space, or with Slurm's reason if Slurm refuses the job.
    """
    _check_files(job)
    run_dir = Path(job.run_dir)
    remedy = "free space (df -h), or name another folder of the shared file system with --folder"
    submitted = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = run_dir / "jobs" / f"{submitted}-{job.stage}-{secrets.token_hex(2)}"
    try:
        Path(job.work_folder).mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True)
        (folder / CONFIG_FILE).write_text(config)
        job_file = job.write(folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}; {remedy}") from None
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        shutil.rmtree(folder)
        raise ValueError(
            f"{run_dir}: {free >> 20} MiB are free, too little even for the smallest model's checkpoints "
            f"({LEAST_FREE_BYTES >> 20} MiB); {remedy}"
        )
    log = folder / "job.log"
    command = ["sbatch", "--parsable", f"--chdir={job.work_folder}", f"--output={log}"]
    if STAGES[job.stage].has_metrics:
        command.append(f"--comment={SLURM_COMMENT}")
    command += sbatch_options
    variables = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    try:
        done = subprocess.run(
            [*command, str(SBATCH_FILE), job.code, str(job_file)],
            capture_output=True,
            text=True,
            timeout=SBATCH_SECONDS,
            env=variables,
        )
    except subprocess.TimeoutExpired:
        # Slurm may have accepted the job nevertheless, so its files stay.
        raise ValueError(
            f"Slurm has not answered for {SBATCH_SECONDS} s; squeue says whether it has the job"
        ) from None
    if done.returncode:
        shutil.rmtree(folder)
        raise ValueError(f"Slurm refuses the job: {done.stderr.strip()}")
    job_id = done.stdout.strip().splitlines()[-1].split(";")[0]
    _remember(Path(job.work_folder) / JOBS, job_id, folder)
    return {"job": job_id, "log": str(log), **STAGES[job.stage].results(job.run_dir, job.output)}


def _check_files(job: Job) -> None:
    """Raise ValueError if a file that the job reads from a shared file system is missing."""
    shared = tuple(f"{mount}/" for mount in job.mounts)
    # Other paths are those of the nodes, which cannot be checked here.
    programs = [path for path in (job.image, job.python) if path and path.startswith(shared)]
    for path in programs:
        if not Path(path).exists():
            raise ValueError(
                f"{path} is not there; docs/training-on-slurm.md says how it gets there"
            )
    absent = [path for path in job.needed if not Path(path).exists()]
    if absent:
        raise ValueError(
            f"{', '.join(absent)}: not there, and {job.stage} reads it. A run leaves its model when it is "
            "done (make status)"
        )


def _remember(jobs: Path, job_id: str, folder: Path) -> None:
    """Link a job's id to its folder, because Slurm forgets the path of the log minutes after a job's end.

    With another controller, job ids start again, so an existing link is replaced.
    """
    jobs.mkdir(exist_ok=True)
    link = jobs / f".{job_id}-{os.getpid()}"
    link.symlink_to(folder)
    move_into_place(link, jobs / job_id)


def main() -> int:
    request = json.loads(sys.argv[1])
    try:
        result = submit(request["config"], job_of(request["job"]), request["sbatch"])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
