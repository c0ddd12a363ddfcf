"""Steps of the setup, their run in order, and the file that records the outcome."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone

from node_setup.failure import described
from node_setup.host import Host
from node_setup.node import Node, log
from node_setup.settings import Role, Settings

EVERY_ROLE: tuple[Role, ...] = ("controller", "login", "worker")
STATE = "/var/lib/node-setup/state.json"
"""Result of the last run, which the message of the day and `make logs` show."""


@dataclass(frozen=True)
class Step:
    """One part of the setup.

    ``apply`` creates it if it is missing, verifies that it works, and reports changes with ``node.changed``.
    It can run again at any time, also on a node that runs jobs.
    """

    name: str
    apply: Callable[[Node], None]
    roles: tuple[Role, ...] = EVERY_ROLE
    switched_on: Callable[[Settings], bool] = lambda _: True


@dataclass(frozen=True)
class StepResult:
    name: str
    seconds: float
    changes: tuple[str, ...]
    warnings: tuple[str, ...]
    error: str | None


def steps_for(steps: Sequence[Step], role: Role, settings: Settings) -> list[Step]:
    return [step for step in steps if role in step.roles and step.switched_on(settings)]


def run_steps(steps: Sequence[Step], node: Node, results: list[StepResult]) -> None:
    """Run steps in order, and add the outcome of each to ``results``; the first failure ends the run.

    Raises:
        SetupError: from the failed step.
    """
    for number, step in enumerate(steps, start=1):
        log(f"step {number}/{len(steps)} {step.name}")
        node.changes = []
        before = len(node.warnings)
        start = time.monotonic()
        error = None
        try:
            step.apply(node)
        except BaseException as failure:
            error = described(failure)
            raise
        finally:
            result = StepResult(
                name=step.name,
                seconds=round(time.monotonic() - start, 3),
                changes=tuple(node.changes),
                warnings=tuple(node.warnings[before:]),
                error=error,
            )
            results.append(result)
        num_changes = len(result.changes)
        changes = f"{num_changes} change{'' if num_changes == 1 else 's'}"
        log(f"step {number}/{len(steps)} {step.name}: ok, {changes}, {result.seconds:.1f} s")


def write_state(
    host: Host, *, bundle: str, group: str, role: str, results: list[StepResult]
) -> None:
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
