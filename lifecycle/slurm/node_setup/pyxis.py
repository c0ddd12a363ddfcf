"""Pyxis, the plugin with which srun starts containers: known to srun on every node, or on none.

Nodes get Slurm's configuration from the controller, and keep a copy. A node that asks before the controller
has the plugin in plugstack.conf keeps a copy without it: srun says `unrecognized option '--container-image'`.
"""

from __future__ import annotations

import re
from pathlib import Path

from node_setup.host import Host

OPTION = "--container-image"
PLUGIN = "spank_pyxis.so"
# Where pyxis's own installation, HyperPod's Slurm and Debian's packages put plugins.
PLUGIN_FOLDERS = ("usr/local/lib/slurm", "opt/slurm/lib/slurm", "opt/slurm/lib64/slurm", "usr/lib/*/slurm*")
CONFIGURATION_FOLDERS = (
    "opt/slurm/etc",
    "etc/slurm",
    "run/slurm/conf",
    "var/spool/slurmd/conf-cache",
)


def srun_knows(host: Host) -> bool:
    """Whether srun on this node has pyxis's options: it loads its plugins before it answers."""
    return OPTION in host.run("srun", "--help")


def is_installed(host: Host) -> bool:
    """Whether this image brings the plugin, whatever Slurm's configuration says of it."""
    return any(True for folder in PLUGIN_FOLDERS for _ in host.root.glob(f"{folder}/{PLUGIN}"))


def is_configured(host: Host) -> bool:
    """Whether a plugstack.conf on this node, or a file that it includes, names pyxis."""
    return any(
        _names_pyxis(host, host.path(folder) / "plugstack.conf", set()) for folder in CONFIGURATION_FOLDERS
    )


def _names_pyxis(host: Host, file: Path, seen: set[Path]) -> bool:
    if file in seen or not file.is_file():
        return False
    seen.add(file)
    for line in file.read_text(errors="replace").splitlines():
        words = line.split("#")[0].split()
        if len(words) >= 2 and words[0].lower() == "include":
            # A relative pattern counts from the file's folder.
            pattern = words[1]
            folder, pattern = (
                (host.root, pattern.lstrip("/")) if pattern.startswith("/") else (file.parent, pattern)
            )
            if any(_names_pyxis(host, included, seen) for included in sorted(folder.glob(pattern))):
                return True
        elif any(re.search("pyxis", word) for word in words):
            return True
    return False
