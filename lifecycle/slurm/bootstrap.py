"""Set up this node: read its facts and settings, and run the steps for its role.

``on_init_complete.sh`` runs it as root on each new node, and `make apply-lifecycle` on existing ones. The
exit status is 0 if every step succeeded. It is 1 if one failed; the last lines name that step.

The variable NODE_SETUP_STEPS limits the run to steps that it names, separated by commas. Such a run neither
drains the node nor replaces the result of the last whole run.
"""

import os
import sys
import traceback
from pathlib import Path

from node_setup.facts import NodeFacts, read_facts
from node_setup.failure import SetupError, described
from node_setup.host import Host
from node_setup.lock import only_run
from node_setup.node import FILES, Node, log
from node_setup.settings import Deployment, Settings, read_section
from node_setup.step import StepResult, run_steps, steps_for, write_state
from node_setup.steps import STEPS
from node_setup.steps.hold import keep_held

ONLY = "NODE_SETUP_STEPS"
SLURM_PROGRAMS = "/opt/slurm/bin:/opt/slurm/sbin"
"""Folders of Slurm in HyperPod's image, which are not on the PATH of the platform's scripts."""
DEFAULT_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH if the caller's environment has none."""


def main() -> int:
    # Users have to enter the new folders, also if the administrator's shell has a strict umask.
    os.umask(0o022)
    host = this_host()
    try:
        with only_run(host):
            return set_up(host)
    except Exception as error:  # the platform sees only the exit status
        _report("facts", error)
        return 1


def this_host() -> Host:
    """Return this machine, after adding Slurm's folders to the PATH."""
    path = os.environ.get("PATH", DEFAULT_PATH)
    os.environ["PATH"] = f"{path}:{SLURM_PROGRAMS}"
    patience = float(os.environ.get("LIFECYCLE_PATIENCE", "1"))
    return Host(root=Path(os.environ.get("DESTDIR") or "/"), patience=patience)


def set_up(host: Host) -> int:
    """Run the steps, and return the exit status.

    Raises:
        SetupError: if the node's facts or settings cannot be read.
    """
    settings = read_section(FILES / "settings.json", Settings)
    # For the commands of all steps, such as curl, which run before any new session.
    os.environ.update(settings.proxy)
    deployment = read_section(FILES / "deployment.json", Deployment)
    facts = read_facts(host, settings)
    log(
        f"{settings.cluster_name}: {facts.role} {facts.host_name} ({facts.address}) of group {facts.group}"
    )
    node = Node(host=host, facts=facts, settings=settings, deployment=deployment)
    steps = steps_for(STEPS, facts.role, settings)
    only = [name for name in os.environ.get(ONLY, "").split(",") if name]
    if only:
        steps = [step for step in steps if step.name in only]
    results: list[StepResult] = []
    try:
        run_steps(steps, node, results)
    except Exception as error:  # unexpected failures too, because such a node must not get jobs
        failed_step = results[-1].name
        _report(failed_step, error)
        if not only:
            keep_held(node, failed_step=failed_step)
            _remember(host, facts, results)
        return 1
    if not only:
        _remember(host, facts, results)
    changes = sum(len(result.changes) for result in results)
    log(f"done: {len(results)} steps, {changes} changes, {len(node.warnings)} warnings")
    return 0


def _report(step: str, error: Exception) -> None:
    if not isinstance(error, SetupError):
        # An unexpected failure needs the traceback.
        log("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    log(f"ERROR: step {step} failed: {described(error)}")


def _remember(host: Host, facts: NodeFacts, results: list[StepResult]) -> None:
    try:
        write_state(host, bundle=FILES.name, group=facts.group, role=facts.role, results=results)
    except OSError as error:
        # The disk may be full. The log has the outcome as well, and the steps' result counts.
        log(f"WARNING: the outcome could not be kept for the message of the day: {error}")


if __name__ == "__main__":
    sys.exit(main())
