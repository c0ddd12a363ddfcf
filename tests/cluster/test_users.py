"""Users of the cluster file: their homes, their jobs under their accounts, and whom workers let in."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until

PAM_PERMISSION_DENIED = "Permission denied"
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "ConnectTimeout=20")


def as_user(name: str) -> dict[str, str]:
    return {"HOME": f"/fsx/home/{name}", "USER": name, "LOGNAME": name}


def submit(login: Machine, user: str, *options: str, script: str) -> str:
    """The id of a batch job, submitted by a user in their home."""
    command = [*("sbatch", "--parsable", "--partition=gpu", f"--chdir=/fsx/home/{user}"), *options]
    text = f"#!/bin/bash\n{script}\n"
    result = login.run(command, user=user, environment=as_user(user), text=text)
    return result.output.strip().splitlines()[-1]


def ended(cluster: Cluster, job: str) -> dict[str, str]:
    """Return the accounting record of a job after its end."""
    fields = ("user", "account", "state", "alloctres")

    def shown() -> list[str]:
        command = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}"]
        line = cluster.controller.run([*command, f"--format={','.join(fields)}"]).output.strip()
        return line.split("|")

    wait_until(
        lambda: shown()[2:3] not in ([], ["PENDING"], ["RUNNING"]),
        f"the end of job {job}",
        seconds=240,
    )
    return dict(zip(fields, shown(), strict=True))


def ssh(cluster: Cluster, user: str, worker: Machine) -> tuple[int, str]:
    result = cluster.login.run(
        [*SSH, worker.address, "hostname"], user=user, environment=as_user(user), check=False
    )
    return result.status, result.output


@pytest.mark.parametrize(("user", "account"), [("ada", "esm2"), ("ben", "esmfold")])
def test_users_run_jobs_under_their_accounts(
    cluster: Cluster, lifecycle: Lifecycle, user: str, account: str
) -> None:
    script = 'srun bash -c "id --user --name; echo \\$HOME" >>out'
    job = submit(cluster.login, user, "--nodes=3", "--gpus-per-node=1", script=script)
    found = ended(cluster, job)
    assert (found["user"], found["account"], found["state"]) == (user, account, "COMPLETED")
    assert "gres/gpu=3" in found["alloctres"]
    # The same home on every node, and the same user.
    said = cluster.login.read(f"/fsx/home/{user}/out").split()
    assert sorted(said) == [f"/fsx/home/{user}"] * 3 + [user] * 3


@pytest.mark.parametrize(("user", "account"), [("ben", "esm2"), ("ubuntu", "esm2")])
def test_no_user_runs_jobs_under_the_account_of_another(
    cluster: Cluster, lifecycle: Lifecycle, user: str, account: str
) -> None:
    command = ["sbatch", "--partition=gpu", f"--account={account}", "--chdir=/tmp", "--wrap=true"]
    result = cluster.login.run(command, user=user, check=False)
    assert result.status != 0
    assert "Invalid account" in result.output


def test_administrators_become_root_and_others_do_not(
    cluster: Cluster, lifecycle: Lifecycle
) -> None:
    for machine in cluster.machines:
        assert machine.run(["sudo", "--non-interactive", "id", "-u"], user="ada").output == "0\n"
        assert (
            machine.run(["sudo", "--non-interactive", "id", "-u"], user="ben", check=False).status
            != 0
        )


@pytest.fixture
def bens_job(cluster: Cluster, lifecycle: Lifecycle) -> Iterator[Machine]:
    """The worker on which a job of ben's runs; he has none on the others."""
    worker = cluster.workers[0]
    begun = cluster.shared / "home/ben/begun"
    begun.unlink(missing_ok=True)
    # Slurm's controller calls a job running before the node has processes of it.
    script = "touch begun && sleep 300"
    job = submit(cluster.login, "ben", f"--nodelist={worker.hostname}", script=script)
    wait_until(begun.exists, "ben's job to run", seconds=240)
    yield worker
    cluster.controller.run(["scancel", job])
    cluster.wait_for_slurm()


def test_workers_let_in_those_with_a_job_there(cluster: Cluster, bens_job: Machine) -> None:
    """sshd, with the key that the scripts created, admits the user only on the job's node."""
    status, output = ssh(cluster, "ben", bens_job)
    assert (status, output.splitlines()[-1]) == (0, bens_job.hostname), output
    elsewhere = cluster.workers[1]
    status, output = ssh(cluster, "ben", elsewhere)
    assert status == 255, output
    assert re.search("Access denied|Connection closed", output)
    pam = elsewhere.run(["pamtester", "sshd", "ben", "acct_mgmt"], check=False)
    assert pam.status != 0
    assert PAM_PERMISSION_DENIED in pam.output


def test_administrators_need_no_job(cluster: Cluster, lifecycle: Lifecycle) -> None:
    worker = cluster.workers[1]
    for user in ("root", "ubuntu", "ada"):
        worker.run(["pamtester", "sshd", user, "acct_mgmt"])
    status, output = ssh(cluster, "ada", worker)
    assert (status, output.splitlines()[-1]) == (0, worker.hostname), output
