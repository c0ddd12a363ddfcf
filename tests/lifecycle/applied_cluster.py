"""A cluster to apply scripts to: a controller whose Slurm is stand-ins that run the jobs on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.lifecycle.node import ADDRESSES, Bundle, Result, resource_config

HASH = "0123456789abcdef"
SOURCE = f"s3://sagemaker-esm2-slurm-123456789012-us-west-2/lifecycle/{HASH}"
STEPS = """
import os
from pathlib import Path
from node_setup.failure import SetupError
from node_setup.node import FILES
from node_setup.step import Step

def touch(node):
    name = os.environ.get("SLURMD_NODENAME", "controller")
    with node.host.path("/visits").open("a") as visits:
        print(name, FILES.name, FILES.parent.stat().st_mode & 0o777, file=visits)
    if node.host.path(f"/broken-{name}").exists():
        raise SetupError("it is broken", "mend it")

STEPS = (Step("touch", touch),)
"""
STEPS_AND_USERS = f"{STEPS.rstrip()[:-1]} Step('users', touch))\n"
"""The same, with one that runs by itself."""
ADDRESS_OF = {
    "ip-10-0-0-31": "10.0.0.31",
    "ip-10-0-0-32": "10.0.0.32",
    "ip-10-0-0-20": ADDRESSES["login"],
}
SCONTROL = r"""
nodes="{nodes}"
show() {{ sed 's/^/NodeName='"$1"' NodeAddr='"$1"' /' "$nodes/$1"; }}
case "$1 $2" in
"--oneliner show")
    for node in ${{4:-$(ls "$nodes")}}; do show "$node"; done ;;
"update NodeName="*)
    name="${{2#*=}}" reason="${{4#*=}}"
    state=IDLE because=
    [[ "$3" != State=DRAIN ]] || state=IDLE+DRAIN because="Reason=$reason [root@2026-11-21T10:00:00]"
    echo "State=$state Partitions=gpu RealMemory=512 $because" > "$nodes/$name" ;;
esac
"""
SRUN = r"""
exec 2>&1
for word; do
    case "$word" in
    --nodelist=*) export SLURMD_NODENAME="${{word#*=}}" ;;
    --*) ;;
    *) break ;;
    esac
    shift
done
if [[ -e "{root}/busy-$SLURMD_NODENAME" ]]; then
    echo "srun: job 7 queued and waiting for resources"
    exec tail --follow /dev/null
fi
grep --quiet DRAIN "{nodes}/$SLURMD_NODENAME" && {{ echo "srun: error: it is drained"; exit 1; }}
"$@"
"""


class Cluster:
    """A controller's bundle and root, with Slurm's nodes as files that hold what scontrol shows."""

    def __init__(self, folder: Path, steps: str = STEPS) -> None:
        self.bundle = Bundle(folder, steps, group="controller")
        self.root = self.bundle.root
        self.nodes = folder / "nodes"
        self.nodes.mkdir()
        stand_ins = self.bundle.stand_ins
        names = {"nodes": self.nodes, "root": self.root}
        stand_ins.command("scontrol", SCONTROL.format(**names))
        stand_ins.command("srun", SRUN.format(**names))
        stand_ins.command("squeue", "echo '12 (ada)'")
        stand_ins.command("sbatch", "echo 13")
        stand_ins.command("scancel")
        stand_ins.command(
            "aws", f'[[ ! -e "{self.root}/no-s3" ]] && cp -r "{self.bundle.folder}/." "${{@: -1}}"'
        )
        stand_ins.command("hostname", self._host_name())
        config = resource_config()
        workers = config["InstanceGroups"][2]["Instances"]
        workers.append({**workers[0], "InstanceId": "i-other", "CustomerIpAddress": "10.0.0.32"})
        self.bundle.write_resource_config(json.dumps(config))
        self.node("ip-10-0-0-31")
        self.node("ip-10-0-0-32")

    def _host_name(self) -> str:
        cases = "".join(f"{name}) address={address} ;;\n" for name, address in ADDRESS_OF.items())
        return f"""
case "$SLURMD_NODENAME" in {cases} *) address={ADDRESSES["controller"]} ;; esac
[[ "$1" == --all-ip-addresses ]] && echo "$address" || echo "ip-${{address//./-}}"
"""

    def node(self, name: str, state: str = "IDLE", reason: str = "") -> None:
        text = f" Reason={reason} [root@2026-11-21T10:00:00]" if reason else ""
        (self.nodes / name).write_text(f"State={state} Partitions=gpu RealMemory=512{text}\n")

    def set(self, flag: str) -> None:
        (self.root / flag).touch()

    def state(self, name: str) -> str:
        return (self.nodes / name).read_text().strip()

    @property
    def visits(self) -> list[str]:
        path = self.root / "visits"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def apply(self, *arguments: str) -> Result:
        script = str(self.bundle.folder / "apply_to_cluster.py")
        done = subprocess.run(
            [sys.executable, "-s", "-B", script, "--source", SOURCE, *arguments],
            env={
                "PATH": self.bundle.stand_ins.path,
                "DESTDIR": str(self.root),
                "LIFECYCLE_PATIENCE": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return Result(done.returncode, done.stdout)
