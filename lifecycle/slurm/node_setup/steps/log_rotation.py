"""Rotation of logs that the image does not rotate: those of the setup and of Slurm's daemons."""

import re
import shutil
from pathlib import Path, PurePath

from node_setup.failure import SetupError
from node_setup.node import Node, log
from node_setup.slurm import configuration

FOLDER, NAME = "/etc/logrotate.d", "cluster-logs"

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
    sections = [
        _ROTATED.format(
            path=path,
            su=_su(node.host.path(path)),
            postrotate=_REOPEN.format(daemon=daemon) if daemon else "",
        )
        for path, daemon in _logs(node).items()
        # logrotate rejects two sections for one log and then ignores both.
        if not any(PurePath(path).match(pattern) for pattern in rotated_already)
    ]
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
    logs: dict[str, str | None] = {"/var/log/provision/provisioning.log": None}
    try:
        config = configuration(node.host)
    except SetupError as error:
        log(f"  Slurm does not say where its logs are: {error.problem}")
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
    files = [node.host.path("/etc/logrotate.conf"), *node.host.path(FOLDER).glob("*")]
    texts = [file.read_text(errors="replace") for file in files if file.is_file() and file.name != NAME]
    lines = [line for text in texts for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [word.strip('"{') for line in lines for word in line.split() if word.startswith(("/", '"/'))]


def _su(file: Path) -> str:
    """Return the ``su`` line for a folder that users can write to; there, logrotate refuses to be root."""
    folder = file.parent
    if not folder.is_dir() or not folder.stat().st_mode & 0o022:
        return ""
    # The log's owner can read it for compression. The folder's owner perhaps cannot.
    owned = file if file.exists() else folder
    return f"su {owned.owner()} {owned.group()}\n    "
