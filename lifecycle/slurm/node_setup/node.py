"""Argument of every step: the machine, its facts and settings, and its lists of changes and warnings."""

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from node_setup.facts import NodeFacts
from node_setup.host import Host
from node_setup.settings import Deployment, Settings

FILES = Path(__file__).parents[1]
"""Folder of the scripts, units and tables, as in S3."""


def log(text: str) -> None:
    """Write a line with its time (UTC); on_init_complete.sh sends it to the log as well."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    print(f"{now} bootstrap: {text}", flush=True)


@dataclass
class Node:
    host: Host
    facts: NodeFacts
    settings: Settings
    deployment: Deployment
    files: Path = FILES
    changes: list[str] = field(default_factory=list)
    """Changes by the current step; empty if it runs a second time."""
    warnings: list[str] = field(default_factory=list)
    """Problems that do not stop the setup; shown at login."""

    def changed(self, what: str) -> None:
        self.changes.append(what)
        log(f"  changed: {what}")

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        log(f"  WARNING: {text}")

    def install(self, path: str, text: str, mode: int = 0o644) -> bool:
        """Write a system file, record a change if it differs, and return whether it did."""
        changed = self.host.write_text(path, text, mode)
        if changed:
            self.changed(path)
        return changed

    def template(self, name: str, **values: str) -> str:
        """Return a file of the bundle with each mark replaced by its value: ``url`` for @URL@."""
        text = (self.files / name).read_text()
        for mark, value in values.items():
            text = text.replace(f"@{mark.upper()}@", value)
        return text

    def install_unit(self, name: str, **values: str) -> bool:
        """Install ``units/<name>`` as a systemd unit; the caller reloads, enables and starts it."""
        return self.install(f"/etc/systemd/system/{name}", self.template(f"units/{name}", **values))

    def remove(self, path: str) -> None:
        """Remove a system file, and record a change if it existed."""
        if self.host.path(path).exists():
            self.host.path(path).unlink()
            self.changed(f"{path}: removed")
