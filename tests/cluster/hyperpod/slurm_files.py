"""Slurm's configuration as HyperPod writes it on the controller; other nodes get it there (configless)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.cluster.machine import CGROUP_MOUNT_POINT

# task/none because not every computer that runs these tests has cgroups with all controllers. SlurmdTimeout,
# and cred_expire and the rounds of scheduling, for which a requeued job waits, are shorter than HyperPod's.
_SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost={controller}({controller_address})
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=cred_expire=5
SlurmctldParameters=enable_configless
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdParameters=config_overrides
SlurmdTimeout=10
ReturnToService=1
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
MpiDefault=none
GresTypes=gpu
PrologFlags=Alloc,Contain
Prolog=/opt/slurm/etc/prolog.d/*
Epilog=/opt/slurm/etc/epilog.d/*
Include accounting.conf
"""
_ACCOUNTING_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={controller}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations
PriorityType=priority/multifactor
PriorityWeightFairShare=1000
"""
# Sent to the other nodes; what it includes is in the image of each.
PLUGSTACK_CONF = "include /opt/slurm/etc/plugstack.conf.d/*\n"
_SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost={controller}
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
"""
# To keep track of a job's processes the older kind of cgroups needs the freezer alone, which boot_machine.sh
# mounts. The plugin for cgroup2 refuses to start on computers that have both kinds.
CGROUP_CONF = f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={CGROUP_MOUNT_POINT}\n"


@dataclass(frozen=True)
class SlurmNode:
    """A node that runs jobs: workers, and login nodes in the default partition."""

    name: str
    address: str
    partition: str | None
    num_gpus: int


def slurm_conf(
    cluster: str, controller: str, controller_address: str, nodes: Sequence[SlurmNode]
) -> str:
    head = _SLURM_CONF.format(
        cluster=cluster, controller=controller, controller_address=controller_address
    )
    lines = [head]
    for node in nodes:
        gres = f" Gres=gpu:{node.num_gpus}" if node.num_gpus else ""
        lines.append(
            f"NodeName={node.name} NodeAddr={node.address} NodeHostname={node.name} CPUs=8 RealMemory=1000"
            f"{gres}\n"
        )
    for partition in sorted({node.partition for node in nodes if node.partition}):
        members = ",".join(node.name for node in nodes if node.partition == partition)
        lines.append(f"PartitionName={partition} Nodes={members} MaxTime=INFINITE State=UP\n")
    lines.append("PartitionName=dev Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")
    return "".join(lines)


def accounting_conf(controller: str) -> str:
    return _ACCOUNTING_CONF.format(controller=controller)


def slurmdbd_conf(controller: str) -> str:
    return _SLURMDBD_CONF.format(controller=controller)


def gres_conf(nodes: Sequence[SlurmNode]) -> str:
    return "".join(
        f"NodeName={node.name} Name=gpu File=/dev/nvidia[0-{node.num_gpus - 1}]\n"
        for node in nodes
        if node.num_gpus
    )
