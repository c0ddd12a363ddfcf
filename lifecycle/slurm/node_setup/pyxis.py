"""Pyxis, the srun plugin that starts containers.

Nodes fetch Slurm's configuration from the controller and keep a copy. A node that fetches it before the
plugin is in plugstack.conf keeps a copy without it, and srun says `unrecognized option '--container-image'`.
"""

from pathlib import Path

from node_setup.host import Host

OPTION = "--container-image"
PLUGIN = "spank_pyxis.so"
# Plugin folders of pyxis's own installation, HyperPod's Slurm and Debian's packages.
PLUGIN_FOLDERS = (
    "usr/local/lib/slurm",
    "opt/slurm/lib/slurm",
    "opt/slurm/lib64/slurm",
    "usr/lib/*/slurm*",
)
CONFIGURATION_FOLDERS = (
    "opt/slurm/etc",
    "etc/slurm",
    "run/slurm/conf",
    "var/spool/slurmd/conf-cache",
)


def srun_knows(host: Host) -> bool:
    """Return whether srun on this node has pyxis's options. It loads its plugins before it prints help."""
    return OPTION in host.run("srun", "--help")


def is_installed(host: Host) -> bool:
    """Return whether this image has the plugin, even if Slurm's configuration does not name it."""
    return any(any(host.root.glob(f"{folder}/{PLUGIN}")) for folder in PLUGIN_FOLDERS)


def configured_at(host: Host) -> float | None:
    """Return the time of the last change to files that name pyxis, in seconds since 1970; None without any.

    These files are plugstack.conf and the files that it includes.
    """
    files: set[Path] = set()
    for folder in CONFIGURATION_FOLDERS:
        read: set[Path] = set()
        if _names_pyxis(host, host.path(folder) / "plugstack.conf", read):
            files |= read
    return max((file.stat().st_mtime for file in files), default=None)


def _names_pyxis(host: Host, file: Path, read: set[Path]) -> bool:
    if file in read or not file.is_file():
        return False
    read.add(file)
    named = False
    for line in file.read_text(errors="replace").splitlines():
        words = line.split("#")[0].split()
        if len(words) >= 2 and words[0].lower() == "include":
            # A relative pattern counts from the file's folder.
            pattern = words[1]
            folder = host.root if pattern.startswith("/") else file.parent
            # A change in any included file counts, so all are read.
            for included in sorted(folder.glob(pattern.lstrip("/"))):
                named |= _names_pyxis(host, included, read)
        else:
            named |= any("pyxis" in word for word in words)
    return named
