"""A node to try lifecycle scripts on: its commands are stand-ins that write down how they were called."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "lifecycle" / "slurm"

# What the scripts call for its effect on the system; everything else on PATH is the real command.
RECORDED = ("systemctl", "sleep", "iptables", "ip6tables", "runuser", "findmnt")

_STAND_IN = """#!/bin/bash
echo "{name} $*" >> "{calls}"
{body}
"""


@dataclass(frozen=True)
class Result:
    status: int
    output: str
    calls: list[str]
    """Commands in the order in which they were called, sleeps included."""


class Node:
    """File system below ``root``, scripts in ``bundle`` as HyperPod copies them from S3: without modes."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.bundle = folder / "bundle"
        self._bin = folder / "bin"
        self._calls = folder / "calls"
        (self.root / "proc/sys/net/ipv6").mkdir(parents=True)
        self.bundle.mkdir()
        for script in SCRIPTS.iterdir():
            (self.bundle / script.name).write_bytes(script.read_bytes())
        self.lustre = folder / "fsx"
        self.lustre.mkdir()
        self.settings()
        self._bin.mkdir()
        for name in RECORDED:
            self.command(name, "exit 0")
        self.command("findmnt", "echo lustre")
        # curl's status for a refused connection.
        self.command("runuser", "exit 7")

    def settings(self, home: Path | str = "") -> None:
        text = f"LUSTRE_MOUNT_PATH={self.lustre}\nHOME_MOUNT_PATH={home}\n"
        (self.bundle / "settings.env").write_text(text)

    def command(self, name: str, body: str) -> None:
        """Have a stand-in do something else; ``$@`` are its arguments."""
        path = self._bin / name
        path.write_text(_STAND_IN.format(name=name, calls=self._calls, body=body))
        path.chmod(0o755)

    def run(self, script: str) -> Result:
        """As HyperPod does it: by the interpreter, from another folder."""
        bash = shutil.which("bash")
        assert bash
        self._calls.write_text("")
        done = subprocess.run(
            [bash, str(self.bundle / script)],
            cwd="/",
            env={"PATH": f"{self._bin}:/usr/sbin:/usr/bin:/sbin:/bin", "DESTDIR": str(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return Result(done.returncode, done.stdout, self._calls.read_text().splitlines())

    @property
    def log(self) -> str:
        return (self.root / "var/log/provision/provisioning.log").read_text()
