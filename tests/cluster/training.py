"""A user's folder with data and a tiny model, and jobs submitted from it, for tests of training."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from seqlm.training.tracking.run_log import RESULTS_FILE
from tests.cluster.bundle import REPOSITORY
from tests.cluster.cluster import Cluster, at_once
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.cluster.test_users import as_user
from tests.workloads.training.training_runs import Losses, losses, start_training

USER = "ada"
UID = 2001
GID = 3000
HOME = f"/fsx/home/{USER}/esm2"
NUM_STEPS = 160
SAVE_EVERY = 20
TRAINING = "seqlm train --config"
"""In the command line of training processes alone."""
# Several nodes share this computer's cores. MLflow, whose import takes seconds, is not there: see home.
PYTHON = f"""#!/bin/sh
PYTHONPATH="{HOME}/hidden:$PYTHONPATH" OMP_NUM_THREADS=1 exec {sys.executable} "$@"
"""


def run_file(folder: str, runs: str) -> str:
    """Data and model are in ``folder``, a path on the nodes."""
    settings: dict[str, Any] = {
        "runs": runs,
        "model": {"init_from": f"{folder}/tiny", "max_residues": 126},
        "data": {"source": [f"{folder}/proteins.fasta"], "path": f"{folder}/data"},
        "optim": {"lr": 1e-3, "warmup_steps": 5},
        "train": {
            "max_steps": NUM_STEPS,
            "tokens_per_pack": 256,
            "tokens_per_step": 512,
            "precision": "fp32",
            "log_every_steps": 1,
            "eval_every_steps": 1000,
            "save_every_steps": SAVE_EVERY,
            "memory_checkpoint_steps": 0,
        },
    }
    return yaml.safe_dump(settings)


class Uninterrupted:
    """The same run without Slurm and without an interruption, on this computer; it begins when it is made."""

    def __init__(self, folder: Path) -> None:
        (folder / "run.yaml").write_text(run_file(str(folder), f"{folder}/runs"))
        self._run_dir = folder / "runs" / "run"
        store = f"tracking.mlflow_uri=file://{folder}/mlruns"
        self._process = start_training(f"--config={folder}/run.yaml", store, processes=2)

    @property
    def losses(self) -> Losses:
        """Loss of each step."""
        if not (self._run_dir / RESULTS_FILE).exists():
            said, _ = self._process.communicate(timeout=240)
            assert self._process.returncode == 0, said
        return losses(self._run_dir)


@pytest.fixture(scope="session")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, prepared: Path, tiny_model: Path
) -> Uninterrupted:
    folder = tmp_path_factory.mktemp("uninterrupted")
    for name, there in (("data", prepared), ("tiny", tiny_model)):
        (folder / name).symlink_to(there)
    return Uninterrupted(folder)


@pytest.fixture(scope="session")
def home(cluster: Cluster, lifecycle: Lifecycle, prepared: Path, tiny_model: Path) -> Path:
    """The user's folder on the shared file system, seen from here: data, a tiny model and a run file."""
    home = cluster.shared / "home" / USER / "esm2"
    shutil.copytree(prepared, home / "data")
    shutil.copytree(tiny_model, home / "tiny")
    (home / "run.yaml").write_text(run_file(HOME, "runs"))
    (home / "python").write_text(PYTHON)
    (home / "python").chmod(0o755)
    (home / "hidden/mlflow").mkdir(parents=True)
    (home / "hidden/mlflow/__init__.py").write_text("raise ImportError\n")
    # Links that jobs of other tests have left lead nowhere here.
    for path in (home, *home.rglob("*")):
        os.chown(path, UID, GID, follow_symlinks=False)
    at_once(let_in, [cluster.login, *cluster.workers])
    cluster.before_slurm.append(let_in)
    return home


def let_in(machine: Machine) -> None:
    """Users of the machine may run the interpreter and the code of this computer, wherever they are."""
    places = [Path(sys.executable), Path(sys.executable).resolve(), REPOSITORY / "tools"]
    folders = {str(parent) for place in places for parent in place.parents}
    machine.run(["chmod", "o+x", *sorted(folders)])


def tool(cluster: Cluster, *arguments: str) -> str:
    """One of the tools behind make, on a login node, as the user; what it prints."""
    command = ["env", f"--chdir={REPOSITORY}", sys.executable, "-m", *arguments]
    command.append("--cluster=tests/cluster/cluster.yaml")
    return cluster.login.run(command, user=USER, environment=as_user(USER), seconds=300).output


def submit(
    cluster: Cluster, *arguments: str, stage: str = "train", nodes: str = "2"
) -> dict[str, str]:
    """Submit as ``make train-ddp TARGET=slurm`` does, and return the printed values by name."""
    options = [f"--config={HOME}/run.yaml", "--gpus-per-node=0", f"--python={HOME}/python"]
    said = tool(cluster, "tools.jobs", "submit", stage, *options, f"--nodes={nodes}", *arguments)
    return dict(re.findall(r"^(\w+) +(.+)$", said, flags=re.MULTILINE))


def job_of(cluster: Cluster, job: str) -> dict[str, str]:
    shown = cluster.controller.run(["scontrol", "show", "job", job, "--oneliner"]).output
    return dict(re.findall(r"(\w+)=(\S*)", shown))


def wait_for_end(cluster: Cluster, job: str, log: Path, state: str = "COMPLETED") -> dict[str, str]:
    wait_until(
        lambda: (
            job_of(cluster, job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")
        ),
        f"the end of job {job}",
        seconds=400,
        pause_seconds=1,
    )
    found = job_of(cluster, job)
    assert found["JobState"] == state, log.read_text()
    return found


def nodes_of(cluster: Cluster, job: str) -> list[Machine]:
    """In Slurm's order: the batch script runs on the first one."""
    listed = job_of(cluster, job)["NodeList"]
    names = cluster.controller.run(["scontrol", "show", "hostnames", listed]).output.split()
    return [next(worker for worker in cluster.workers if worker.hostname == name) for name in names]


def log_of(cluster: Cluster, job: dict[str, str]) -> Path:
    return cluster.shared / Path(job["log"]).relative_to("/fsx")
