"""What every step gets: the machine, what it is, what is asked of it, and where to tell what was done."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from node_setup.facts import NodeFacts
from node_setup.host import Host
from node_setup.settings import Deployment, Settings

FILES = Path(__file__).parents[1]
"""The bundle: scripts, units and tables, as they lie in S3."""


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
    """What the step at work has changed; none the second time."""
    warnings: list[str] = field(default_factory=list)
    """What works without, but a person should know; shown at log-in."""

    def changed(self, what: str) -> None:
        self.changes.append(what)
        log(f"  changed: {what}")

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        log(f"  WARNING: {text}")

    def install(self, path: str, text: str, mode: int = 0o644) -> bool:
        """Make a file of the system; counts as a change if it was another one before."""
        changed = self.host.write_text(path, text, mode)
        if changed:
            self.changed(path)
        return changed

    def template(self, name: str, **values: str) -> str:
        """Text of a file of the bundle, with each value in the place of its mark: ``url`` for @URL@."""
        text = (self.files / name).read_text()
        for mark, value in values.items():
            text = text.replace(f"@{mark.upper()}@", value)
        return text

    def install_unit(self, name: str, **values: str) -> bool:
        """Install ``units/<name>`` as a unit of systemd; the caller reloads, enables and starts it."""
        return self.install(f"/etc/systemd/system/{name}", self.template(f"units/{name}", **values))

    def remove(self, path: str) -> None:
        """Remove a file of the system; counts as a change if it was there."""
        if self.host.path(path).exists():
            self.host.path(path).unlink()
            self.changed(f"{path}: removed")
