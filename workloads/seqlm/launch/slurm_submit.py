"""Writes the files of a job and hands it to Slurm: ``python3 -m seqlm.launch.slurm_submit REQUEST``.

On the node from which jobs are submitted, as their user, by the node's own Python. REQUEST is a JSON text:
``{"config": TEXT, "job": {fields of Job}, "sbatch": [options]}``. Prints a JSON line of what to look at.
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

from .job_file import CONFIG_FILE, Job, job_of

SBATCH_FILE = Path(__file__).with_name("train.sbatch")
JOBS = "jobs"
"""In the work folder: a link for each job, to its folder."""
LEAST_FREE_BYTES = 512 << 20
"""Three checkpoints of ESM-2 8M, the smallest: 12 bytes a parameter."""
SBATCH_SECONDS = 120
"""A busy controller takes its time."""
KEPT_VARIABLES = ("HOME", "LANG", "LOGNAME", "PATH", "USER")
"""A job does not depend on what else its user had set in the shell it was submitted from."""


def submit(config: str, job: Job, sbatch_options: list[str]) -> dict[str, str]:
    """Returns the job's id, and its folders and files by name.

    Raises:
        ValueError: with Slurm's reason if it refuses; if a folder cannot be made, or has no room for a run.
    """
    for path in filter(None, (job.image, job.python)):
        # What is no path of a shared file system is the business of the nodes.
        if path.startswith(tuple(f"{mount}/" for mount in job.mounts)) and not Path(path).exists():
            raise ValueError(f"{path} is not there; docs/training-on-slurm.md says how it gets there")
    if absent := [path for path in job.needed if not Path(path).exists()]:
        raise ValueError(
            f"{', '.join(absent)}: not there, and {job.stage} reads it. A run leaves its model when it is "
            "done (make status)"
        )
    run_dir = Path(job.run_dir)
    ways_out = "free space (df -h), or name another folder of the shared file system with --folder"
    stamp = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{job.stage}-{secrets.token_hex(2)}"
    folder = run_dir / "jobs" / stamp
    try:
        Path(job.work_folder).mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True)
        (folder / CONFIG_FILE).write_text(config)
        job_file = job.write(folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}; {ways_out}") from None
    if (free := shutil.disk_usage(folder).free) < LEAST_FREE_BYTES:
        shutil.rmtree(folder)
        raise ValueError(
            f"{run_dir}: {free >> 20} MiB are free, too little even for the smallest model's checkpoints "
            f"({LEAST_FREE_BYTES >> 20} MiB); {ways_out}"
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
        # It may have taken the job all the same, which then needs its files.
        raise ValueError(
            f"Slurm has not answered for {SBATCH_SECONDS} s; squeue says whether it has the job"
        ) from None
    if done.returncode:
        shutil.rmtree(folder)
        raise ValueError(f"Slurm refuses the job: {done.stderr.strip()}")
    job_id = done.stdout.strip().splitlines()[-1].split(";")[0]
    _remember(Path(job.work_folder) / JOBS, job_id, folder)
    return {"job": job_id, "log": str(log), **STAGES[job.stage].results(job.run_dir, job.output)}


def _remember(jobs: Path, job_id: str, folder: Path) -> None:
    """Slurm forgets a job's log minutes after its end; numbers start again with another controller."""
    jobs.mkdir(exist_ok=True)
    link = jobs / f".{job_id}-{os.getpid()}"
    link.symlink_to(folder)
    link.replace(jobs / job_id)


def main() -> int:
    request = json.loads(sys.argv[1])
    try:
        found = submit(request["config"], job_of(request["job"]), request["sbatch"])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
