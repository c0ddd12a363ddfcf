"""Namespaces of the tests' own, in which machines are started; nothing of them is left on this computer.

One process holds a mount, a network and a process namespace. Everything is started inside them, so that the
end of that one ends all others, unmounts what they mounted and removes their interfaces.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import psutil  # type: ignore[import-untyped]

from tests.cluster.patience import wait_until

NETWORK = "10.77.0"
GATEWAY = f"{NETWORK}.1"
METADATA_ADDRESS = "169.254.169.254"
METADATA_ADDRESS_6 = "fd00:ec2::254"
CGROUPS = (Path("cgroups/unified"), Path("cgroups/freezer"))
"""In the island's folder: cgroup2, for systemd, and the freezer of the older kind, for Slurm."""

# Ends with the process that started it (setpriv), and everything in the namespaces with it (--kill-child).
_INIT = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--mount",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
]
# A shell that waits takes orphans' statuses; its files are in memory, so that no disk is waited for.
_SCRIPT = f"""
set -eu
mount -t tmpfs -o mode=0755,size=4g tmpfs "$1"
mount -t proc proc /proc
mkdir -p "$1/cgroups/unified" "$1/cgroups/freezer"
mount -t cgroup2 cgroup2 "$1/cgroups/unified"
mount -t cgroup -o freezer cgroup "$1/cgroups/freezer"
ip link set lo up
ip link add bridge0 type bridge
ip address add {GATEWAY}/24 dev bridge0
ip address add {METADATA_ADDRESS}/32 dev bridge0
ip -6 address add {METADATA_ADDRESS_6}/128 dev bridge0 nodad
ip -6 address add fd77::1/64 dev bridge0 nodad
ip link set bridge0 up
mkdir "$1/ready"
while :; do sleep 3600 & wait $!; done
"""


class Island:
    """A context in which processes can be started, with a network and a folder in memory."""

    def __init__(self) -> None:
        self._mount_point = Path(tempfile.mkdtemp(prefix="test-cluster-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Island:
        self._process = subprocess.Popen(
            [
                *_INIT,
                "--propagation",
                "private",
                "bash",
                "-c",
                _SCRIPT,
                "island",
                str(self._mount_point),
            ],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._init = child_of(self._process)
        wait_until(
            (self.folder / "ready").is_dir, "namespaces with a network of their own", seconds=240
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process
        self._process.kill()
        self._process.wait(timeout=240)
        wait_until(
            lambda: not psutil.pid_exists(self._init), "the end of all machines", seconds=240
        )
        shutil.rmtree(self._mount_point)

    @property
    def inner_folder(self) -> Path:
        """The folder in memory, as it is called inside."""
        return self._mount_point

    @property
    def folder(self) -> Path:
        """The same as seen from here. Links to absolute paths in it would lead out of it."""
        return Path(f"/proc/{self._init}/root{self._mount_point}")

    def command(self, arguments: Sequence[str]) -> list[str]:
        """A command line that runs another one inside."""
        namespaces = ["--mount", "--net", "--pid"]
        return ["nsenter", "--target", str(self._init), *namespaces, "--", *arguments]

    def link(self, name: str, process: int, address: str) -> None:
        """Give the network namespace of a process an interface on the bridge."""
        here = f"link add {name} type veth peer name eth0 netns {process}"
        there = ["nsenter", "--target", str(process), "--net", "ip", "-batch", "-"]
        outer = ["nsenter", "--target", str(self._init), "--net", "ip", "-batch", "-"]
        number = address.rsplit(".", 1)[1]
        _batch(outer, [here, f"link set {name} master bridge0 up"])
        _batch(
            there,
            [
                "link set lo up",
                f"address add {address}/24 dev eth0",
                f"address add fd77::{number}/64 dev eth0 nodad",
                "link set eth0 up",
                f"route add default via {GATEWAY}",
                "route add default via fd77::1",
            ],
        )


def _batch(command: list[str], lines: list[str]) -> None:
    subprocess.run(command, input="\n".join(lines), text=True, check=True, timeout=240)


def child_of(process: subprocess.Popen[bytes]) -> int:
    """The process that a chain of nsenter and unshare ends in, once its last one has forked."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        children = psutil.Process(process.pid).children()
        if children:
            return children[0].pid
        time.sleep(0.01)
    raise RuntimeError(f"{process.args!r} started nothing")
