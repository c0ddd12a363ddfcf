"""A redeployed cluster: its controller starts with a database of its own, then gets the one that was kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.hyperpod import agent
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.test_users import ended, submit

FIRST_VERSION_WITH_IDS = (23, 11)
"""First version whose slurmctld refuses a database that has another number for the cluster."""
STATE = "/var/spool/slurmctld"
DATABASES = {"kept": "/run/mysqld/mysqld.sock", "own": "/run/mysqld/own.sock"}
# A second MariaDB, as the image of a new controller has one of its own.
START_OWN = """
mariadb-install-db --user=mysql --datadir=/var/lib/mysql-own --auth-root-authentication-method=socket \
    --skip-test-db >/dev/null
systemd-run --quiet --unit=mariadb-own mariadbd --no-defaults --user=mysql --datadir=/var/lib/mysql-own \
    --socket=/run/mysqld/own.sock --skip-networking
until mariadb --socket=/run/mysqld/own.sock --execute="SELECT 1" >/dev/null 2>&1; do sleep 0.2; done
mariadb --socket=/run/mysqld/own.sock --execute="CREATE DATABASE slurm_acct_db;
    CREATE USER slurm@localhost IDENTIFIED VIA unix_socket;
    GRANT ALL ON slurm_acct_db.* TO slurm@localhost;"
"""
STOP_OWN = """
systemctl stop mariadb-own
rm --recursive --force /var/lib/mysql-own
"""
# slurmdbd.conf has no key for the socket of a local database; the client's library reads it here.
USE = """
systemctl stop slurmctld slurmdbd
folder=/etc/systemd/system/slurmdbd.service.d
mkdir --parents "$folder"
printf '[Service]\\nEnvironment=MYSQL_UNIX_PORT={socket}\\n' >"$folder/socket.conf"
systemctl daemon-reload
systemctl start slurmdbd
until sacctmgr --noheader show cluster; do sleep 0.2; done
"""
SAVE_STATE = f"cp --archive {STATE} {STATE}.saved && find {STATE} -mindepth 1 -delete"
RESTORE_STATE = f"rm --recursive {STATE} && mv {STATE}.saved {STATE}"


@pytest.fixture
def controller(cluster: Cluster, lifecycle: Lifecycle) -> Iterator[Machine]:
    """A controller with a second database; its own state comes back."""
    cluster.wait_for_slurm()
    controller = cluster.controller
    controller.run(["bash", "-euc", START_OWN], seconds=120)
    yield controller
    use(controller, "kept")
    controller.run(["bash", "-euc", RESTORE_STATE + STOP_OWN])
    cluster.start_slurmctld()
    cluster.wait_for_slurm()


def use(controller: Machine, database: str) -> None:
    """Have slurmdbd use a database; slurmctld is down afterwards."""
    controller.run(["bash", "-euc", USE.format(socket=DATABASES[database])], seconds=90)


def version(controller: Machine) -> tuple[int, ...]:
    return tuple(map(int, controller.run(["slurmctld", "-V"]).output.split()[-1].split(".")[:2]))


def shares(controller: Machine) -> str:
    """Accounts with their parents and shares."""
    what = ["show", "assoc", "tree", "format=account,parentname,share,user"]
    return controller.run(["sacctmgr", "--noheader", "--parsable2", *what]).output


def test_a_redeployed_cluster_keeps_history_and_fair_share(
    cluster: Cluster, lifecycle: Lifecycle, controller: Machine
) -> None:
    job = submit(cluster.login, "ada", "--job-name=before", script="true")
    record = ended(cluster, job)
    before = shares(controller)
    assert "esm2|biology|3|" in before.replace(" ", "")

    use(controller, "own")
    controller.run(["bash", "-euc", SAVE_STATE])
    cluster.start_slurmctld()
    assert "esm2" not in shares(controller)

    use(controller, "kept")
    controller.run(["systemctl", "start", "slurmctld"])
    result = lifecycle.run(controller)
    assert result.status == 0, result.output
    is_repaired = "adopts the accounting database's number" in result.output
    assert is_repaired == (version(controller) >= FIRST_VERSION_WITH_IDS)
    assert ended(cluster, job) == record
    assert shares(controller) == before
    agent.restart_slurmctld(controller)
    cluster.wait_for_slurm()
    assert ended(cluster, job) == record
    # Numbers of jobs begin again, so that accounting may have another job with this number.
    later = submit(cluster.login, "ada", script="true")
    shown = cluster.login.run(["scontrol", "--oneliner", "show", "job", str(later)]).output
    assert "Account=esm2 " in shown
