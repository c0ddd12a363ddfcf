"""What became of the last run, for people: the message of the day and `make logs` show it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timezone

from node_setup.host import Host

STATE = "/var/lib/node-setup/state.json"


@dataclass(frozen=True)
class StepResult:
    name: str
    seconds: float
    changes: tuple[str, ...]
    warnings: tuple[str, ...]
    error: str | None


def write_state(host: Host, *, bundle: str, group: str, role: str, results: list[StepResult]) -> None:
    """Replace the file with this run's result."""
    failed = next((result for result in results if result.error), None)
    state = {
        "bundle": bundle,
        "finished": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "group": group,
        "role": role,
        "failed_step": failed.name if failed else None,
        "steps": [asdict(result) for result in results],
    }
    host.write_text(STATE, json.dumps(state, indent=2) + "\n")
