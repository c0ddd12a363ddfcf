"""Run the scripts again on an existing cluster: on this controller, then on every worker through Slurm.

With ``--only users``, only the steps for users run, and no node is drained. Full nodes do not hold up the
command: their job waits in Slurm's queue, before all other jobs.

`make apply-lifecycle` runs ``apply_to_cluster.py --source S3_URI`` as root on the controller, from a copy of
the same scripts. The exit status is 0 if all nodes are done, and 3 if some workers are not, which it names.
It is 1 if the controller failed and no worker was started.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bootstrap import ONLY, this_host
from node_setup.facts import addresses_of_role, read_facts
from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.lock import open_lock, take
from node_setup.node import FILES
from node_setup.settings import Settings, read_section
from node_setup.slurm import SlurmNode, show_nodes
from node_setup.steps.hold import LOG
from workers.held_workers import is_held_by_us, reserved, run_held, why_unreachable
from workers.progress import Progress
from workers.worker_run import Outcome, Source, cancel_queued, queue_on_worker, run_on_worker

BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
LOCK = "/run/node-setup-apply.lock"
PARALLEL = 32
"""Workers on which the scripts run at the same time."""
ONLY_STEPS = {"users": "users,slurm-accounts"}
"""Steps by the value of --only, by their names in node_setup/steps."""
PARALLEL_STEPS = 128
"""The same with --only, because these steps take seconds and copy little."""
WAIT_MINUTES = 10.0
WAIT_MINUTES_ONLY = 0.5
"""Limits of the wait for a free core on a busy worker, without and with --only."""
WORKERS_UNDONE = 3
"""Exit status after which tools/nodes/apply_lifecycle.py continues with login nodes."""


def main() -> int:
    options = _options()
    host = this_host()
    host.path(LOG).parent.mkdir(parents=True, exist_ok=True)
    with host.path(LOG).open("a") as log, open_lock(host, LOCK) as lock:
        progress = Progress(log, sys.stdout)
        if not take(lock):
            progress.say(
                "ERROR: another run of this command holds the lock. What to do: wait for its end; "
                f"`tail --follow {LOG}` on this node shows its progress"
            )
            return 1
        try:
            return _apply(host, read_section(FILES / "settings.json", Settings), options, progress)
        except SetupError as error:
            progress.say(f"ERROR: {error}")
            return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Run the scripts on the controller, then on every worker."
    )
    parser.add_argument(
        "--source", required=True, metavar="S3_URI", help="scripts that workers fetch"
    )
    parser.add_argument(
        "--nodes", default="", help="host names of workers, separated by commas; default all"
    )
    parser.add_argument(
        "--wait-minutes",
        type=float,
        help="limit of the wait for free resources on a busy worker "
        f"({WAIT_MINUTES:g}, with --only {WAIT_MINUTES_ONLY:g})",
    )
    parser.add_argument(
        "--only", choices=tuple(ONLY_STEPS), help="run only these steps, and drain no node"
    )
    return parser.parse_args()


def _apply(host: Host, settings: Settings, options: argparse.Namespace, progress: Progress) -> int:
    """Run the scripts everywhere, and return the exit status.

    Raises:
        SetupError: if this is not the primary controller, or Slurm does not answer.
    """
    facts = read_facts(host, settings)
    if not facts.is_primary_controller:
        raise SetupError(
            f"this is {facts.host_name}, of group {facts.group}; the primary controller is "
            f"{facts.controller_addresses[0]}",
            "run it there",
        )
    progress.say("controller: begun")
    steps = ONLY_STEPS.get(options.only, "")
    with progress.alive():
        status = _run_here(progress, steps)
    if status != 0:
        raise SetupError(
            "the scripts failed on the controller, and no worker was started",
            "see the failed step above; repair it, and repeat this command",
        )
    progress.say("controller: done")
    wanted = [name for name in options.nodes.split(",") if name]
    workers = _workers(host, settings, wanted)
    source = Source(
        region=settings.region,
        s3_uri=options.source.rstrip("/"),
        fetch_script=(FILES / "run_from_s3.sh").read_text(),
        steps=steps,
    )
    wait_minutes = options.wait_minutes
    if wait_minutes is None:
        wait_minutes = WAIT_MINUTES_ONLY if steps else WAIT_MINUTES
    wait_seconds = wait_minutes * 60 * host.patience
    with progress.alive():
        outcomes = _run_all(host, workers, source, wait_seconds, progress)
    return _conclude(outcomes, progress)


def _run_here(progress: Progress, steps: str) -> int:
    with subprocess.Popen(
        ["bash", str(FILES / "on_init_complete.sh")],
        env={**os.environ, "SECONDS_TO_SHIP_LOG": "0", ONLY: steps},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            progress.pass_on(line.rstrip("\n"))
    return process.returncode


def _workers(host: Host, settings: Settings, wanted: Sequence[str]) -> list[SlurmNode]:
    """Return Slurm's nodes, idle ones first, without login nodes, which Slurm may list as well.

    Raises:
        SetupError: if Slurm has no worker with a wanted name.
    """
    others = addresses_of_role(host, settings, "controller", "login")
    host_names = {f"ip-{address.replace('.', '-')}" for address in others}
    nodes = {
        node.name: node
        for node in show_nodes(host)
        if node.address not in others and node.name not in host_names
    }
    unknown = [name for name in wanted if name not in nodes]
    if unknown:
        raise SetupError(
            f"Slurm has no worker {', '.join(unknown)}; its workers are {', '.join(nodes) or 'none'}",
            "name workers that `sinfo --Node` shows",
        )
    chosen = [nodes[name] for name in wanted] or list(nodes.values())
    # Busy nodes would keep the idle ones waiting.
    return sorted(chosen, key=lambda node: bool(node.flags & BUSY))


def _run_all(
    host: Host,
    workers: Sequence[SlurmNode],
    source: Source,
    wait_seconds: float,
    progress: Progress,
) -> list[Outcome]:
    absent: list[Outcome] = []
    reachable: list[SlurmNode] = []
    for node in workers:
        why = why_unreachable(node)
        if source.steps and is_held_by_us(node):
            why = f"it is {node.state} ({node.reason}); run this command without --only, or replace the node"
        if why is None:
            reachable.append(node)
        else:
            absent.append(Outcome(node.name, begun=False, status=1, summary=why))
    progress.say(f"{len(reachable)} workers to do, {len(absent)} that cannot be reached")
    held = [node for node in reachable if is_held_by_us(node)]
    with reserved(host, held, wait_seconds=wait_seconds) as reservation:

        def run(node: SlurmNode) -> Outcome:
            is_held = is_held_by_us(node)
            once = partial(
                run_on_worker,
                host,
                node,
                source,
                wait_seconds=wait_seconds,
                reservation=reservation if is_held else None,
                say=progress.say,
            )
            try:
                outcome = run_held(host, node, once) if is_held else once()
                if source.steps and outcome.is_full:
                    outcome = queue_on_worker(host, node, source)
            except SetupError as error:
                outcome = Outcome(node.name, begun=False, status=1, summary=str(error))
            progress.say(f"{node.name}: {outcome.state}: {outcome.summary}")
            return outcome

        if source.steps:
            cancel_queued(host)
        num_parallel = PARALLEL_STEPS if source.steps else PARALLEL
        with ThreadPoolExecutor(max_workers=num_parallel) as pool:
            return absent + list(pool.map(run, reachable))


def _conclude(outcomes: Sequence[Outcome], progress: Progress) -> int:
    """Report the failures again at the end, with the last output of each node."""
    missing = [outcome for outcome in outcomes if not outcome.is_done]
    for outcome in missing:
        if outcome.output:
            progress.say(f"{outcome.node}, the end of its output:")
            for line in outcome.output:
                progress.pass_on(f"    {line}")
    queued = sum(outcome.queued for outcome in outcomes)
    waiting = f", {queued} of them when they have a free core" if queued else ""
    progress.say(
        f"done: the controller and {len(outcomes) - len(missing)} of {len(outcomes)} workers{waiting}"
    )
    for outcome in missing:
        progress.say(f"NOT DONE: {outcome.node}: {outcome.summary}")
    return WORKERS_UNDONE if missing else 0


if __name__ == "__main__":
    sys.exit(main())
