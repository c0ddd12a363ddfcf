"""Rotation of logs that the image does not rotate: those of the setup and of Slurm's daemons."""

import re
import shutil
from pathlib import Path, PurePath

from node_setup.failure import SetupError
from node_setup.node import Node, log
from node_setup.slurm import configuration

FOLDER = "/etc/logrotate.d"
NAME = "cluster-logs"
PROVISIONING = "/var/log/provision/provisioning.log"

# Weekly, or earlier if a log would fill the root volume. Logs older than two months are not useful.
_ROTATED = """\
{path} {{
    {su}weekly
    maxsize 100M
    rotate 8
    compress
    delaycompress
    missingok
    notifempty
    nocreate
{postrotate}}}
"""
# Slurm's daemons reopen their logs on SIGUSR2; on SIGHUP they would read their configuration again, too.
_REOPEN = """\
    postrotate
        pkill --signal USR2 --exact {daemon} || true
    endscript
"""


def install(node: Node) -> None:
    """Install one file for the logs that no other file rotates, and warn if logrotate rejects it."""
    if not shutil.which("logrotate"):
        node.warn("logs grow without end: there is no logrotate on this node")
        return
    rotated_already = _patterns(node)
    sections: list[str] = []
    for path, daemon in _logs(node).items():
        # logrotate rejects two sections for one log and then ignores both.
        if any(PurePath(path).match(pattern) for pattern in rotated_already):
            continue
        postrotate = _REOPEN.format(daemon=daemon) if daemon else ""
        sections.append(
            _ROTATED.format(path=path, su=_su(node.host.path(path)), postrotate=postrotate)
        )
    file = node.host.path(FOLDER) / NAME
    if not sections:
        if file.exists():
            file.unlink()
            node.changed(f"removed {file}")
        return
    node.install(f"{FOLDER}/{NAME}", "\n".join(sections))
    checked = node.host.try_run("logrotate", "--debug", file)
    if checked.status != 0 or "error:" in checked.errors:
        # A rejected file would stop the rotation of other logs too.
        file.unlink()
        node.warn(
            f"logs grow without end: logrotate does not accept {FOLDER}/{NAME}, which was removed: "
            f"{checked.said}"
        )


def _logs(node: Node) -> dict[str, str | None]:
    """Return paths of logs with the daemon that writes each; None is a script, which reopens its log."""
    logs: dict[str, str | None] = {PROVISIONING: None}
    try:
        config = configuration(node.host)
    except SetupError as error:
        log(f"  the paths of Slurm's logs are unknown: {error.problem}")
        return logs
    if node.facts.role == "controller":
        logs[config.get("SlurmctldLogFile", "")] = "slurmctld"
        logs[_database_log(node, config.get("SLURM_CONF", ""))] = "slurmdbd"
    else:
        # %h and %n stand for names of the node (slurm.conf).
        logs[re.sub("%.", "*", config.get("SlurmdLogFile", ""))] = "slurmd"
    # An empty path means syslog, which the system rotates.
    return {path: daemon for path, daemon in logs.items() if path.startswith("/")}


def _database_log(node: Node, slurm_conf: str) -> str:
    file = node.host.path(slurm_conf).with_name("slurmdbd.conf") if slurm_conf else Path()
    if not file.is_file():
        return ""
    found = re.search(
        r"^\s*LogFile\s*=\s*(\S+)", file.read_text(errors="replace"), re.MULTILINE | re.IGNORECASE
    )
    return found.group(1) if found else ""


def _patterns(node: Node) -> list[str]:
    """Return the paths that other files rotate; some have wildcards."""
    patterns: list[str] = []
    for file in (node.host.path("/etc/logrotate.conf"), *node.host.path(FOLDER).glob("*")):
        if not file.is_file() or file.name == NAME:
            continue
        for line in file.read_text(errors="replace").splitlines():
            if not line.lstrip().startswith("#"):
                words = line.split()
                patterns += [word.strip('"{') for word in words if word.startswith(("/", '"/'))]
    return patterns


def _su(file: Path) -> str:
    """Return the ``su`` line for a folder that users can write to; there, logrotate refuses to be root."""
    folder = file.parent
    if not folder.is_dir() or not folder.stat().st_mode & 0o022:
        return ""
    # The log's owner can read it for compression. The folder's owner perhaps cannot.
    owned = file if file.exists() else folder
    return f"su {owned.owner()} {owned.group()}\n    "
