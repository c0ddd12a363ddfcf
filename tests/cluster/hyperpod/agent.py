"""HyperPod's work on a node before a lifecycle script runs: Slurm's services."""

from __future__ import annotations

from tests.cluster.hyperpod.slurm_files import (
    CGROUP_CONF,
    PLUGSTACK_CONF,
    SlurmNode,
    accounting_conf,
    gres_conf,
    slurm_conf,
    slurmdbd_conf,
)
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until

_DATABASE = """
mariadb-install-db --user=mysql --datadir=/var/lib/mysql --auth-root-authentication-method=socket \
    --skip-test-db >/dev/null
systemctl start mariadb.service
mariadb --execute "CREATE DATABASE slurm_acct_db;
    CREATE USER slurm@localhost IDENTIFIED VIA unix_socket;
    GRANT ALL ON slurm_acct_db.* TO slurm@localhost;"
"""


def write_slurm_files(machine: Machine, cluster: str, nodes: list[SlurmNode]) -> None:
    """The controller's own; with workers of other names it must be restarted."""
    controller = machine.hostname
    machine.write("/opt/slurm/etc/accounting.conf", accounting_conf(controller))
    machine.write("/opt/slurm/etc/cgroup.conf", CGROUP_CONF)
    machine.write("/opt/slurm/etc/plugstack.conf", PLUGSTACK_CONF)
    machine.write("/opt/slurm/etc/gres.conf", gres_conf(nodes))
    machine.write(
        "/opt/slurm/etc/slurm.conf", slurm_conf(cluster, controller, machine.address, nodes)
    )


def start_controller(machine: Machine, cluster: str, nodes: list[SlurmNode]) -> None:
    """Accounting before slurmctld, which registers the cluster with it."""
    write_slurm_files(machine, cluster, nodes)
    machine.write("/opt/slurm/etc/slurmdbd.conf", slurmdbd_conf(machine.hostname), mode=0o600)
    machine.run(["chown", "slurm:", "/opt/slurm/etc/slurmdbd.conf"])
    machine.run(["systemctl", "enable", "--now", "--quiet", "munge.service"])
    machine.run(["bash", "-euc", _DATABASE])
    machine.run(["systemctl", "enable", "--now", "--quiet", "mariadb.service", "slurmdbd.service"])
    wait_until(
        lambda: machine.run(["sacctmgr", "--noheader", "show", "cluster"], check=False).status == 0,
        "slurmdbd to answer",
        seconds=240,
    )
    machine.run(["systemctl", "enable", "--now", "--quiet", "slurmctld.service"])
    wait_for_slurmctld(machine)


def restart_slurmctld(machine: Machine) -> None:
    """So that it takes nodes that are new in its files; all others fetch these again."""
    machine.run(["systemctl", "restart", "slurmctld.service"])
    wait_for_slurmctld(machine)
    machine.run(["scontrol", "reconfigure"])


def wait_for_slurmctld(machine: Machine) -> None:
    def answers() -> bool:
        return "UP" in machine.run(["scontrol", "ping"], check=False).output

    wait_until(answers, "slurmctld to answer", seconds=240)


def start_slurmd(machine: Machine, *, controller: str, num_gpus: int) -> None:
    for number in range(num_gpus):
        machine.run(["mknod", "--mode=0666", f"/dev/nvidia{number}", "c", "1", "3"])
    machine.write("/etc/default/slurmd", f"SLURMD_OPTIONS=--conf-server={controller}\n")
    machine.run(["systemctl", "enable", "--now", "--quiet", "munge.service", "slurmd.service"])
