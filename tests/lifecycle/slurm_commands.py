"""Slurm's commands as stand-ins, with one node and a small accounting database; they speak as 22.05 does."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lifecycle.node import StandIns
from tests.lifecycle.sacctmgr import sacctmgr

PYXIS_HELP = "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"
CONFIGURATION = """Configuration data as of 2026-11-21T15:36:39
AccountingStorageEnforce = associations,limits
AccountingStorageHost   = localhost
AccountingStorageType   = accounting_storage/slurmdbd
BOOT_TIME               = 2026-11-21T15:36:17
ClusterName             = HyperPod
PrologFlags             = Alloc,Contain
ProctrackType           = proctrack/cgroup
SlurmctldParameters     = (null)
TopologyPlugin          = topology/none

Slurmctld(primary) at ip-10-0-0-10 is UP
"""

_SCONTROL = r"""
cd {folder}
case "$*" in
    ping) cat ping ;;
    "show config") cat configuration ;;
    "show topology") cat topology ;;
    "show hostnames "*) cat hostnames ;;
    reconfigure) ;;
    "--oneliner show node "*)
        [[ -s state ]] || {{ echo "Node ${{!#}} not found" >&2; exit 1; }}
        echo "NodeName=${{!#}} Arch=x86_64 CPUTot=4 Gres=$(<gres) NodeAddr=10.0.0.31 State=$(<state)" \
            "Partitions=gpu,all  CfgTRES=cpu=4,mem=1M ExtSensorsTemp=n/s" \
            "$([[ ! -s reason ]] || echo " Reason=$(<reason) [root@2026-11-21T15:37:13]")" ;;
    "update nodename="*" state=drain reason="*)
        grep --quiet DRAIN state || echo "$(<state)+DRAIN" >state
        words="$*"; echo "${{words#*reason=}}" >reason ;;
    "update nodename="*" state=resume")
        if [[ -s after_resume ]]; then cp after_resume state; else echo IDLE >state; fi; : >reason ;;
    *) echo "unexpected: $*" >&2; exit 64 ;;
esac
"""


class SlurmCommands:
    """Stand-ins whose answers are in files of ``folder``, which tests write."""

    def __init__(self, folder: Path, stand_ins: StandIns) -> None:
        self.folder = folder
        folder.mkdir()
        self.answers("ping", "Slurmctld(primary) at ip-10-0-0-10 is UP\n")
        self.answers("configuration", CONFIGURATION)
        self.answers("topology", "")
        self.answers("gres", "gpu:a10g:1(S:0)")
        self.answers("reason", "")
        self.state = "IDLE"
        self.answers("help", PYXIS_HELP)
        self.answers("jobs", "")
        stand_ins.command("scontrol", _SCONTROL.format(folder=folder))
        stand_ins.command("srun", f"cat {folder}/help")
        stand_ins.command("squeue", f"cat {folder}/jobs")
        stand_ins.command("sinfo", "printf 'gpu\\nall\\n'")
        stand_ins.command("sbatch", "echo 'sbatch: Job 1 to start at 2026-11-21T15:36:38' >&2")
        stand_ins.command("systemctl", '[[ "$1" != is-active ]] || echo active')
        stand_ins.command("nvidia-smi", "echo 'GPU 0: NVIDIA A10G (UUID: GPU-1)'")
        stand_ins.function("sacctmgr", partial(sacctmgr, folder / "database"))
        self.database = {
            "accounts": {"root": ["", "1"]},
            "users": {"root": ["root"]},
            "admins": ["root"],
        }

    def answers(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    @property
    def state(self) -> str:
        return (self.folder / "state").read_text().strip()

    @state.setter
    def state(self, value: str) -> None:
        self.answers("state", value)

    @property
    def reason(self) -> str:
        return (self.folder / "reason").read_text().strip()

    def configure(self, **changes: str) -> None:
        lines = (self.folder / "configuration").read_text().splitlines()
        kept = [line for line in lines if line.split("=")[0].strip() not in changes]
        self.answers(
            "configuration", "\n".join([*kept, *(f"{k} = {v}" for k, v in changes.items())]) + "\n"
        )

    @property
    def database(self) -> dict[str, Any]:
        """Accounts (name to parent and fairshare), users (name to accounts, the default first), admins."""
        return json.loads((self.folder / "database").read_text())

    @database.setter
    def database(self, value: dict[str, Any]) -> None:
        self.answers("database", json.dumps({"busy": [], **value}))


@pytest.fixture
def slurm(tmp_path: Path, stand_ins: StandIns) -> SlurmCommands:
    return SlurmCommands(tmp_path / "slurm", stand_ins)
