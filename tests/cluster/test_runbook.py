"""The runbook's backup before a patch and its restore afterwards, on a real controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.tools.documents.document_commands import blocks

RUNBOOK = (Path(__file__).parents[2] / "docs/runbook.md").read_text()
DONE = "before-the-patch"
WAITING = "waits-since-before"
LATER = "after-the-patch"
# What a patch leaves: services that the image sets up anew, on an empty database and without a queue.
NEW_ROOT_VOLUME = """
systemctl stop slurmctld slurmdbd
mysql --execute="DROP DATABASE slurm_acct_db; CREATE DATABASE slurm_acct_db"
find /var/spool/slurmctld -mindepth 1 -delete
systemctl start slurmdbd
until sacctmgr --noheader show cluster; do sleep 0.2; done
systemctl start slurmctld
until [[ "$(scontrol ping)" == *UP* ]]; do sleep 0.2; done
"""


def block_with(words: str) -> str:
    (found,) = (block for block in blocks(RUNBOOK) if words in block)
    # The test's machines are root's, and have no sudo.
    return f'set -euo pipefail\nsudo() {{ "$@"; }}\n{found}'


@pytest.fixture
def controller(cluster: Cluster) -> Machine:
    cluster.wait_for_slurm()
    return cluster.controller


def jobs_in(controller: Machine, command: str) -> list[str]:
    """Names of the jobs that a command lists."""
    return sorted(
        {
            line.strip()
            for line in controller.run(command.split()).output.splitlines()
            if line.strip()
        }
    )


def test_accounting_and_queue_survive_a_patch(cluster: Cluster, controller: Machine) -> None:
    controller.run(
        ["sacctmgr", "--immediate", "add", "account", "kept", "description=x", "organization=x"]
    )
    controller.run(["srun", f"--job-name={DONE}", "--partition=gpu", "true"])
    controller.run(["sbatch", f"--job-name={WAITING}", "--partition=gpu", "--hold", "--wrap=true"])
    wait_until(
        lambda: (
            "COMPLETED"
            in controller.run(["sacct", "-n", "-X", "--format=state", f"--name={DONE}"]).output
        ),
        "the job to be accounted",
        seconds=240,
    )

    controller.run(["bash", "-c", block_with("mysqldump")], seconds=120)
    saved = controller.run(["ls", "/fsx/saved-before-patch"]).output.split()
    assert saved == ["accounting.sql", "accounts.cfg", "configuration.tar", "state.tar"]
    assert "kept" in controller.read("/fsx/saved-before-patch/accounts.cfg")
    listed = controller.run(
        ["tar", "--list", "--file=/fsx/saved-before-patch/configuration.tar"]
    ).output
    assert "./slurm.conf" in listed.split()

    controller.run(["bash", "-euc", NEW_ROOT_VOLUME], seconds=120)
    assert jobs_in(controller, "squeue --noheader --format=%j") == []
    assert "kept" not in controller.run(["sacctmgr", "--noheader", "show", "account"]).output

    controller.run(["bash", "-c", block_with("SOURCE")], seconds=120)
    assert "kept" in controller.run(["sacctmgr", "--noheader", "show", "account"]).output
    assert DONE in jobs_in(controller, "sacct --allusers --noheader -X --format=jobname%30")
    assert jobs_in(controller, "squeue --noheader --format=%j") == [WAITING]
    cluster.wait_for_slurm()
    controller.run(["srun", f"--job-name={LATER}", "--partition=gpu", "true"])
    controller.run(["scancel", f"--name={WAITING}"])
    controller.run(["sacctmgr", "--immediate", "delete", "account", "kept"])
