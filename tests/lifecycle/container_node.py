"""A node with disks, Docker, containerd and enroot, of which each tells what its own configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from node_setup.node import Node
from tests.lifecycle.node import StandIns, node_of

ROOT = "259:1"
NVME = "253:0"
EBS = "259:5"
SIZES = {"/opt/dlami/nvme": 600, "/opt/sagemaker": 500}

SYSTEMCTL = """
case "$1" in
show) if [[ "$*" == *dlami-nvme* ]]; then
        printf 'LoadState=loaded\\nActiveState=active\\nExecMainExitTimestampMonotonic=7\\n'
    else echo 'ExecStart={ path=/usr/bin/dockerd ; argv[]=/usr/bin/dockerd -H fd:// ; }'; fi ;;
is-enabled) echo enabled ;;
restart) [[ $2 != containerd.service ]] || mkdir --parents \
    "{root}$(containerd config dump | cut -d"'" -f2)/io.containerd.snapshotter.v1.overlayfs" ;;
esac
"""
# Docker reads its configuration at each query, so its report shows what it would do.
DOCKER = """
case "$1" in
info)
    root="$(sed -n 's/.*"data-root": "\\(.*\\)".*/\\1/p' "{daemon}" 2>/dev/null)"
    echo "\\"${{root:-/var/lib/docker}}\\" {driver}" ;;
esac
"""
CONTAINERD = """
root="$(sed -n 's/^root = "\\(.*\\)"/\\1/p' "{config}" 2>/dev/null | head -1)"
echo "root = '${{root:-/var/lib/containerd}}'"
"""
ENROOT = """
mkdir --parents "{marks}"
[[ ! -e "{marks}/refuse" ]] || {{ echo "mkdir: cannot create directory: Permission denied" >&2; exit 1; }}
"""


class ContainerNode:
    """``disks`` are the mounts besides the root volume: path to device."""

    def __init__(self, folder: Path, stand_ins: StandIns, group: str = "workers") -> None:
        self.folder = folder
        self.commands = stand_ins
        self.node: Node = node_of(folder, group, container_storage="local_disk")
        self.root = self.node.host.root
        self.mount({"/opt/dlami/nvme": NVME, "/opt/sagemaker": EBS})
        stand_ins.command(
            "df", "".join(f"[[ $3 != {path} ]] || echo {size};" for path, size in SIZES.items())
        )
        stand_ins.command("systemctl", SYSTEMCTL.replace("{root}", str(self.root)))
        stand_ins.command("squeue")
        # Runs as user nobody would, without changing the user.
        stand_ins.command("runuser", 'shift 3; exec "$@"')
        self.docker()
        stand_ins.command("enroot", ENROOT.format(marks=folder / "marks"))

    def mount(self, disks: dict[str, str]) -> None:
        lines = [f"22 1 {ROOT} / / rw - ext4 /dev/root rw"]
        for number, (path, device) in enumerate(disks.items(), start=30):
            (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
            lines.append(f"{number} 22 {device} / {path} rw,relatime shared:1 - xfs /dev/x rw")
        self.write("/proc/self/mountinfo", "\n".join(lines) + "\n")

    def docker(self, driver: str = '[["Backing Filesystem","extfs"]]') -> None:
        quoted = driver.replace('"', '\\"')
        daemon = self.root / "etc/docker/daemon.json"
        self.commands.command("docker", DOCKER.format(daemon=daemon, driver=quoted))
        config = self.root / "etc/containerd/config.toml"
        self.commands.command("containerd", CONTAINERD.format(config=config))

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def again(self) -> Any:
        """The same node as a later run finds it."""
        self.commands.forget_calls()
        self.node.changes = []
        self.node.warnings = []
        return self.node
