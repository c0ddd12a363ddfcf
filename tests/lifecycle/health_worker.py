"""The health checks and the prolog on a worker of the tests' own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from node_setup.node import FILES
from tests.lifecycle.node import StandIns


class Worker:
    """The two scripts as the step installs them, in short time, with stand-ins for what they ask."""

    def __init__(
        self, folder: Path, stand_ins: StandIns, num_gpus: int = 2, num_neuron: int = 0
    ) -> None:
        self.folder = folder
        self.commands = stand_ins
        self.scripts = folder / "stand_ins/bin"
        text = (FILES / "units/check_node_health.sh").read_text()
        text = text.replace("@LUSTRE@", "/fsx").replace("@NUM_GPUS@", str(num_gpus))
        text = text.replace("@NUM_NEURON_DEVICES@", str(num_neuron)).replace(
            "/dev/neuron", f"{folder}/neuron"
        )
        text = text.replace(
            "seconds_to_answer=4 seconds_between_looks=2",
            "seconds_to_answer=1 seconds_between_looks=0",
        )
        self.reset = folder / "gpus-were-reset"
        self.write("check-node-health", text.replace("/run/gpus-were-reset", str(self.reset)))
        prolog = (
            (FILES / "units/health_check_prolog.sh")
            .read_text()
            .replace("seconds_in_all=25", "seconds_in_all=3")
        )
        path = next(line for line in prolog.splitlines() if line.startswith("export PATH="))
        self.write("prolog", prolog.replace(path, ""))
        stand_ins.command("findmnt", "echo lustre")
        stand_ins.command("stat", '[[ $1 != --format* ]] || exec /usr/bin/stat "$@"')
        stand_ins.command("df", "printf 'Avail\\n 9000\\n'")
        stand_ins.command(
            "nvidia-smi",
            "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H100 (UUID: GPU-2)'",
        )
        for name in ("journalctl", "logger", "scontrol"):
            stand_ins.command(name)

    def write(self, name: str, text: str) -> None:
        (self.scripts / name).write_text(text)
        (self.scripts / name).chmod(0o755)

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.scripts / name)],
            env={
                "PATH": self.commands.path,
                "SLURM_JOB_ID": "7",
                "SLURMD_NODENAME": "ip-10-0-0-31",
            },
            capture_output=True,
            text=True,
            timeout=60,
        )

    def drained(self) -> str | None:
        """The reason given to Slurm."""
        reasons = [
            call.split("reason=", 1)[1]
            for call in self.commands.calls
            if call.startswith("scontrol update")
        ]
        return reasons[0] if reasons else None

    def logged(self) -> str:
        return "\n".join(call for call in self.commands.calls if call.startswith("logger"))
