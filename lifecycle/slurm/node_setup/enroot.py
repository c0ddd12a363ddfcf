"""enroot's folders on a local disk, one per user, below parents that all users can write to."""

import re

from node_setup.disks import INSTANCE_STORE, SECOND_VOLUME, is_on_root_volume
from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.root_folder import make_root_folder
from node_setup.slurm import runs_jobs

CONFIG = "/etc/enroot/enroot.conf"
DROP_INS = "/etc/enroot/enroot.conf.d"
"""Folder of further files with settings."""
UNIT = "container-folders.service"
PLACES = {
    "ENROOT_RUNTIME_PATH": "runtime/user-$(id -u)",
    "ENROOT_CACHE_PATH": "cache/user-$(id -u)",
    "ENROOT_DATA_PATH": "data/user-$(id -u)",
    "ENROOT_TEMP_PATH": "tmp",
}
"""Folders of enroot's settings. enroot creates the first three for each user alone; the last must exist.

In a shared cache, one user could plant layers for the others.
"""
# A user without privileges runs this, as enroot does, also in pyxis' clean-up after a job. If that user
# cannot write there, Slurm drains the node. enroot evaluates values in a shell, so a shell does it here.
EVALUATE = 'for value; do eval "echo $value"; done'
USE = (
    "enroot list && for folder; do "
    '[[ -w $folder ]] || { echo "cannot write to $folder" >&2; exit 1; }; done'
)
_SETTING = re.compile(r"^(\s*)(ENROOT_[A-Z]+_PATH)[\s=]+(.*)$")


def place_enroot(node: Node, disk: str) -> None:
    """Move enroot's folders to ``disk`` if they are unset, on the root volume, or unusable for users.

    Raises:
        SetupError: if users cannot use enroot afterwards, or Slurm does not report whether jobs run.
    """
    if not node.host.path(CONFIG).exists():
        return
    settings = _settings(node)
    misplaced = [
        key
        for key in PLACES
        if key not in settings
        or any(is_on_root_volume(node.host, path) for path in _evaluate(node, settings[key]))
    ]
    if misplaced and runs_jobs(node.host, node.facts.host_name):
        node.warn(
            f"enroot keeps {', '.join(misplaced)} on the root volume while jobs with containers there run: "
            "apply the scripts again when the node is idle"
        )
        return
    _move(node, misplaced, disk)
    problem = _use(node)
    if problem and not runs_jobs(node.host, node.facts.host_name):
        _move(node, list(PLACES), disk)
        problem = _use(node)
    if problem:
        raise SetupError(
            f"user nobody cannot use enroot: {problem}",
            f"the folders above those that {CONFIG} names must exist, with mode 1777",
        )


def _settings(node: Node) -> dict[str, list[str]]:
    """Return every value of each key in all files. Which one counts differs between versions of enroot."""
    settings: dict[str, list[str]] = {}
    for file in _files(node):
        for line in node.host.path(file).read_text().splitlines():
            if (match := _SETTING.match(line)) and match.group(2) in PLACES:
                settings.setdefault(match.group(2), []).append(match.group(3))
    return settings


def _all_values(node: Node) -> list[str]:
    return [value for values in _settings(node).values() for value in values]


def _files(node: Node) -> list[str]:
    drop_ins = sorted(file.name for file in node.host.path(DROP_INS).glob("*.conf"))
    return [CONFIG, *(f"{DROP_INS}/{name}" for name in drop_ins)]


def _move(node: Node, keys: list[str], disk: str) -> None:
    wanted = {key: f"{disk}/enroot/{PLACES[key]}" for key in keys}

    def with_new_value(setting: re.Match[str]) -> str:
        key = setting[2]
        return f"{key} {wanted[key]}" if key in wanted else setting[0]

    for file in _files(node):
        text = node.host.path(file).read_text()
        lines = [_SETTING.sub(with_new_value, line) for line in text.splitlines()]
        if file == CONFIG:
            known = _settings(node)
            lines += [f"{key} {value}" for key, value in wanted.items() if key not in known]
        if lines != text.splitlines():
            node.install(file, "\n".join(lines) + "\n")
    _make_folders(node)


def _make_folders(node: Node) -> None:
    """Create the parents now and at every boot, because the instance store may be empty after a boot."""
    values = _all_values(node)
    parents = [
        parent
        for parent in (f"{INSTANCE_STORE}/enroot", f"{SECOND_VOLUME}/enroot")
        if any(value.startswith(f"{parent}/") for value in values)
    ]
    if not parents:
        return
    folders: list[str] = []
    for parent in parents:
        folders += [f"{parent}/{place.split('/')[0]}" for place in PLACES.values()]
        # This comes before the unit opens the folders in it to all users.
        make_root_folder(node.host, parent)
    if node.install_unit(UNIT, parents=" ".join(parents), folders=" ".join(folders)):
        node.host.run("systemctl", "daemon-reload")
    node.host.run("systemctl", "enable", "--quiet", UNIT)
    node.host.run("systemctl", "restart", UNIT)


def _use(node: Node) -> str:
    """Return why user nobody cannot use enroot; empty if it can."""
    paths = _evaluate(node, _all_values(node))
    done = node.host.try_run(*_as_nobody(USE, [str(node.host.path(path)) for path in paths]))
    if done.status == 0:
        return ""
    return done.said or f"`enroot list` ended with {done.status}"


def _evaluate(node: Node, values: list[str]) -> list[str]:
    return node.host.run(*_as_nobody(EVALUATE, values)).splitlines()


def _as_nobody(script: str, arguments: list[str]) -> list[str]:
    # User nobody has no home, and enroot needs one.
    environment = ["env", "--unset=XDG_RUNTIME_DIR", "HOME=/home/nobody"]
    return [
        "runuser",
        "--user",
        "nobody",
        "--",
        *environment,
        "bash",
        "-c",
        script,
        "enroot",
        *arguments,
    ]
