"""Accounts and QOS that move between two accounting databases of the real Slurm."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tools.migrate.slurm_accounts import (
    SlurmAccounts,
    add_missing,
    compare_accounts,
    read_accounts,
)
from tools.nodes.head_node import HeadNode

HERE = HeadNode("this machine")
PORTS = {"old": 17819, "new": 17820}
"""Clusters, and the ports of their slurmdbd."""
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge
DbdHost=localhost
DbdPort={port}
SlurmUser=root
LogFile={folder}/{name}/slurmdbd.log
PidFile={folder}/{name}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_{name}
"""
SLURM_CONF = """\
ClusterName={name}
SlurmctldHost=localhost
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge
"""
OLD = """
add qos name=long
modify qos where name=long set priority=5 maxwall=7-00:00:00 grptres=node=8 flags=DenyOnLimit
modify qos where name=long set gracetime=300 preempt=normal
add account name=biology cluster=old parent=root fairshare=3 description=biology organization=lab
add account name=esm2 cluster=old parent=biology fairshare=2 description="the esm2: team" organization=lab
modify account where name=esm2 cluster=old set grpjobs=4 grptres=node=2,cpu=16 qos=normal,long defaultqos=long
add user name=ada account=esm2 cluster=old
add user name=ada account=biology cluster=old
add user name=ben account=biology cluster=old fairshare=7
"""
NEW = """
add account name=biology cluster=new parent=root fairshare=1 description=biology organization=lab
add user name=ben account=biology cluster=new fairshare=7
"""


def sacctmgr(commands: str) -> None:
    command = ["xargs", "--max-lines=1", "sacctmgr", "--immediate", "--quiet"]
    subprocess.run(command, input=commands.strip(), text=True, check=True)


def wait(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Repeat a command until it succeeds."""
    deadline = time.monotonic() + 240
    while subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode:
        assert time.monotonic() < deadline, command
        time.sleep(0.1)


@contextmanager
def running(command: list[str], environment: dict[str, str] | None = None) -> Iterator[None]:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(240)


def environment(folder: Path, name: str) -> dict[str, str]:
    return {
        **os.environ,
        "SLURM_CONF": str(folder / name / "slurm.conf"),
        "MYSQL_UNIX_PORT": str(folder / "mysql" / "socket"),
    }


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A MariaDB with two databases, each with its slurmdbd; the folder of their files."""
    folder = tmp_path_factory.mktemp("databases")
    (folder / "mysql").mkdir()
    data = f"--datadir={folder}/mysql"
    local = "--auth-root-authentication-method=socket"
    subprocess.run(
        ["mariadb-install-db", "--user=root", data, local, "--skip-test-db"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    socket = f"--socket={folder}/mysql/socket"
    server = ["mariadbd", "--no-defaults", "--user=root", data, socket, "--skip-networking"]
    munged = [
        *("munged", "--foreground", "--force", f"--key-file={folder}/key"),
        *(f"--socket={folder}/munge", f"--pid-file={folder}/munged.pid"),
        *(f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed"),
    ]
    with ExitStack() as stack:
        stack.enter_context(running([*server, "--innodb-buffer-pool-size=32M"]))
        stack.enter_context(running(munged))
        wait(["mariadb", socket, "--execute=SELECT 1"])
        for name, port in PORTS.items():
            (folder / name).mkdir()
            for file, text in (("slurmdbd.conf", SLURMDBD_CONF), ("slurm.conf", SLURM_CONF)):
                path = folder / name / file
                path.write_text(text.format(folder=folder, name=name, port=port))
                path.chmod(0o600)
            subprocess.run(
                ["mariadb", socket, f"--execute=CREATE DATABASE slurm_{name}"], check=True
            )
            stack.enter_context(running(["slurmdbd", "-D"], environment(folder, name)))
        for name in PORTS:
            added = ["sacctmgr", "--immediate", "--quiet", "add", "cluster", name]
            wait(added, environment(folder, name))
        yield folder


def read(databases: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> SlurmAccounts:
    """Read a cluster, whose database sacctmgr uses from now on."""
    monkeypatch.setenv("SLURM_CONF", str(databases / name / "slurm.conf"))
    return read_accounts(HERE)


@pytest.mark.timeout(240)
def test_accounts_users_and_qos_move(databases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, commands in (("new", NEW), ("old", OLD)):
        monkeypatch.setenv("SLURM_CONF", str(databases / name / "slurm.conf"))
        sacctmgr(commands)
    old = read(databases, "old", monkeypatch)
    new = read(databases, "new", monkeypatch)
    assert (old.cluster, new.cluster) == ("old", "new")
    left = compare_accounts(old, new)
    assert {found.label for found in left.missing} == {
        "account esm2",
        "user ada in esm2",
        "user ada in biology",
    }
    assert left.missing_qos == ["long"]
    other_share = "account biology: Fairshare is 3 in the old cluster and 1 in the new one"
    assert left.different == [other_share]

    assert add_missing(HERE, old, new) == "added 4 accounts, users and QOS"
    moved = read(databases, "new", monkeypatch)
    assert moved.qos == old.qos
    assert moved.qos["long"]["GraceTime"] == "00:05:00"
    values = {found.label: found.values() for found in moved.associations}
    assert values["account esm2"] == {
        "Parent": "biology",
        "Description": "the esm2: team",
        "Organization": "lab",
        "DefaultQOS": "long",
        "Fairshare": "2",
        "GrpTRES": "cpu=16,node=2",
        "GrpJobs": "4",
        "QOS": "long,normal",
    }
    # What the new cluster's file set stays.
    assert values["account biology"]["Fairshare"] == "1"
    again = compare_accounts(old, moved)
    assert (again.num_missing, again.different) == (0, [other_share])
    assert add_missing(HERE, old, moved) == "nothing is missing"
