"""Training as users submit it: through the shipped batch script, and through the death of a node."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import EsmConfig

from tests.cluster.bundle import REPOSITORY
from tests.cluster.cluster import Cluster, at_once
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.cluster.test_users import as_user
from tests.workloads.esm2.conftest import prepared, tiny_config, tiny_model
from tests.workloads.esm2.training_runs import events, losses
from workloads.esm2.launch.slurm_attempts import newest_checkpoint

__all__ = ["prepared", "tiny_config", "tiny_model"]
USER, UID = "ada", 2001
HOME = f"/fsx/home/{USER}/esm2"
NUM_STEPS, SAVE_EVERY = 80, 10
# Several nodes share this computer's cores.
PYTHON = f"""#!/bin/sh
OMP_NUM_THREADS=1 exec {sys.executable} "$@"
"""


@pytest.fixture(scope="module")
def home(cluster: Cluster, lifecycle: Lifecycle, prepared: Path, tiny_model: Path, folder: Path) -> Path:
    """The user's folder on the shared file system, seen from here: data, a tiny model and a run file."""
    home = cluster.shared / "home" / USER / "esm2"
    shutil.copytree(prepared, home / "data")
    shutil.copytree(tiny_model, home / "tiny")
    for path in (home, *home.rglob("*")):
        os.chown(path, UID, 3000)
    settings: dict[str, Any] = {
        "model": {"init_from": f"{HOME}/tiny", "max_residues": 126},
        "data": {"source": [f"{HOME}/proteins.fasta"], "path": "data"},
        "optim": {"lr": 1e-3, "warmup_steps": 5},
        "train": {
            "max_steps": NUM_STEPS,
            "tokens_per_pack": 256,
            "tokens_per_step": 512,
            "precision": "fp32",
            "log_every_steps": 1,
            "eval_every_steps": 1000,
            "save_every_steps": SAVE_EVERY,
        },
    }
    (home / "python").write_text(PYTHON)
    (home / "python").chmod(0o755)
    at_once(let_in, [cluster.login, *cluster.workers])
    run_file = home / "run.yaml"
    run_file.write_text(yaml.safe_dump(settings))
    return home


def let_in(machine: Machine) -> None:
    """Users of the machine may run the interpreter and the code of this computer, wherever they are."""
    places = [Path(sys.executable), Path(sys.executable).resolve(), REPOSITORY / "tools"]
    folders = {str(parent) for place in places for parent in place.parents}
    machine.run(["chmod", "o+x", *sorted(folders)])


def submit(cluster: Cluster, *arguments: str) -> dict[str, str]:
    """As ``make train-ddp TARGET=slurm`` does on a login node; what it prints, by name."""
    command = ["env", f"--chdir={REPOSITORY}", sys.executable, "-m", "tools.submit", "train"]
    command += ["--cluster=tests/cluster/cluster.yaml", f"--config={HOME}/run.yaml", "--nodes=2"]
    command += ["--gpus-per-node=0", f"--python={HOME}/python", *arguments]
    said = cluster.login.run(command, user=USER, environment=as_user(USER), seconds=120).output
    return dict(re.findall(r"^(\w+) +(.+)$", said, flags=re.MULTILINE))


def job_of(cluster: Cluster, job: str) -> dict[str, str]:
    shown = cluster.controller.run(["scontrol", "show", "job", job, "--oneliner"]).output
    return dict(re.findall(r"(\w+)=(\S*)", shown))


def wait_for_end(cluster: Cluster, job: str, log: Path) -> dict[str, str]:
    wait_until(
        lambda: job_of(cluster, job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED"),
        f"the end of job {job}",
        seconds=150,
    )
    found = job_of(cluster, job)
    assert found["JobState"] == "COMPLETED", log.read_text()
    return found


def shared(cluster: Cluster, path: str) -> Path:
    return cluster.shared / Path(path).relative_to("/fsx")


def test_a_dead_node_costs_steps_and_nothing_else(
    cluster: Cluster, lifecycle: Lifecycle, home: Path, tiny_config: EsmConfig
) -> None:
    whole = submit(cluster, "name=whole")
    wait_for_end(cluster, whole["job"], shared(cluster, whole["log"]))
    broken = submit(cluster, "name=broken")
    run_dir, log = home / "runs" / "broken", shared(cluster, broken["log"])
    wait_until(lambda: newest_checkpoint(run_dir) >= SAVE_EVERY, "a checkpoint", seconds=90)
    names = cluster.controller.run(
        ["scontrol", "show", "hostnames", job_of(cluster, broken["job"])["NodeList"]]
    )
    lost = next(worker for worker in cluster.workers if worker.hostname == names.output.split()[-1])
    cluster.kill(lost)
    try:
        found = wait_for_end(cluster, broken["job"], log)
    finally:
        new = cluster.replace(lost)
        repaired = lifecycle.run(new)
    assert repaired.status == 0, repaired.output
    cluster.wait_for_slurm()
    assert found["Restarts"] == "1" and lost.hostname not in found["NodeList"]
    assert "resumed" in events(run_dir), log.read_text()
    # The same numbers to the last bit, each step once.
    assert losses(run_dir) == losses(home / "runs" / "whole")
    assert len(losses(run_dir)) == NUM_STEPS
    results = json.loads((run_dir / "all_results.json").read_text())
    assert results["world_size"] == 2
    assert Path(broken["report"]).name == "report.html" and (run_dir / "report.html").exists()
