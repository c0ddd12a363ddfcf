"""Diagnosis of a slurmctld that does not start, from its log, for known faults."""

import re
from pathlib import Path

from node_setup.failure import SetupError
from node_setup.host import Host

# Paths of HyperPod, then of Debian's and Ubuntu's packages.
CONFIGURATIONS = ("/opt/slurm/etc/slurm.conf", "/etc/slurm/slurm.conf")
LOGS = ("/var/log/slurm/slurmctld.log", "/var/log/slurmctld.log")
TAIL_BYTES = 65536


def why_controller_is_down(host: Host) -> SetupError | None:
    """Return a diagnosis, if slurmctld's log on this node has one; other nodes have no such log."""
    settings = _settings(host)
    told = _log(host, settings.get("slurmctldlogfile"))
    # Lines before the last start no longer apply.
    told = told[max(0, told.rfind("slurmctld version ")) :]
    if "CLUSTER ID MISMATCH" in told:
        folder = settings.get("statesavelocation", "the StateSaveLocation of slurm.conf")
        return SetupError(
            f"slurmctld ends with CLUSTER ID MISMATCH: {folder} and the accounting database know this "
            "cluster by different numbers. Accounting was set up after slurmctld's first start, or the "
            "database was another cluster's",
            "make sure that no other controller uses this folder or this cluster name in the database; "
            f"then on the controller `sudo systemctl stop slurmctld`, `sudo mv {folder}/clustername "
            f"{folder}/clustername.old`, `sudo systemctl start slurmctld`; jobs and nodes are kept",
        )
    if re.search(r"(cannot stat|read|open).*topology\.(conf|yaml)", told, re.IGNORECASE):
        return SetupError(
            "slurmctld waits for a topology file that does not exist: slurm.conf names a TopologyPlugin",
            "on the controller comment TopologyPlugin out in slurm.conf and `sudo systemctl restart "
            "slurmctld`; the service writes both for instance types that have a topology",
        )
    # A message may have several lines. The next entry begins with its time.
    fatal = re.findall(r"fatal: (.*?)(?=\n\[|\Z)", told, re.DOTALL)
    if fatal:
        return SetupError(
            f"slurmctld ends with: {' '.join(fatal[-1].split())}",
            "see its log on the controller, and `systemctl status slurmctld`",
        )
    return None


def _settings(host: Host) -> dict[str, str]:
    """Return the ``Name=value`` lines of slurm.conf, with names in lower case because Slurm ignores case."""
    for path in CONFIGURATIONS:
        file = host.path(path)
        if file.is_file():
            lines = file.read_text(errors="replace").splitlines()
            pairs = re.findall(r"^\s*(\w+)\s*=\s*(\S+)\s*(?:#.*)?$", "\n".join(lines), re.MULTILINE)
            return {name.lower(): value for name, value in pairs}
    return {}


def _log(host: Host, configured: str | None) -> str:
    for path in (configured, *LOGS):
        file = host.path(path) if path else Path()
        if file.is_file():
            with file.open("rb") as log:
                log.seek(max(0, file.stat().st_size - TAIL_BYTES))
                return log.read().decode(errors="replace")
    return ""
