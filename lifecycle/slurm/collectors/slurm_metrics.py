"""Write Slurm's metrics for node_exporter: nodes, GPUs, jobs, waiting times and the scheduler.

The existing exporters have no maintainers, and Slurm's own metrics begin with 25.11. The three commands used
here have the same formats from 22.05 to 25.11, and each is one short request to slurmctld. The metrics' names
differ from Slurm's own, such as slurm_nodes, so that both can be collected.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timezone

from collectors.text_files import Sample, format_samples, repeat, write

SECONDS_PER_COMMAND = 25
"""slurmctld's own clients wait 10 s for each message."""
NODE_STATES = ("allocated", "down", "drained", "draining", "idle", "mixed")
"""States that are written even if no node is in them, so that a graph falls to zero instead of ending."""
UNUSABLE = ("down", "drained", "draining", "fail", "unknown")
NOT_WAITING = ("BeginTime", "Dependency", "JobArrayTaskLimit", "JobHeldAdmin", "JobHeldUser")
"""Reasons of pending jobs that more nodes would not start."""
CYCLES = {
    "Last cycle": ("slurm_scheduler_last_cycle_seconds", 1e-6),
    "Mean cycle": ("slurm_scheduler_mean_cycle_seconds", 1e-6),
    "Last queue length": ("slurm_scheduler_queue_length", 1),
}
"""Metric and unit of the values that sdiag prints for both schedulers."""
SCHEDULER: dict[str, tuple[str, dict[str, str]]] = {
    "Server thread count": ("slurm_scheduler_threads", {}),
    "Agent queue size": ("slurm_scheduler_agent_queue_size", {}),
    # Counters that start again at midnight UTC and with slurmctld.
    **{
        f"Jobs {event}": ("slurm_scheduler_jobs_total", {"event": event})
        for event in ("submitted", "started", "completed", "canceled", "failed")
    },
}
"""Metric and labels of the values that sdiag prints once."""


def query(*command: str) -> str:
    """Return a command's output.

    Raises:
        OSError, subprocess.SubprocessError: if the command is missing, fails, or takes too long.
    """
    # Times are in UTC. An administrator's own output formats must not apply.
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SQUEUE_"))
    }
    environment |= {"TZ": "UTC", "LC_ALL": "C"}
    return subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS_PER_COMMAND,
        env=environment,
    ).stdout


def node_samples() -> list[Sample]:
    nodes: Counter[str] = Counter(dict.fromkeys(NODE_STATES, 0))
    amounts: Counter[tuple[str, str]] = Counter()
    in_partition: Counter[tuple[str, str, str]] = Counter()
    for line in query("scontrol", "--details", "--oneliner", "show", "nodes").splitlines():
        if not line.startswith("NodeName="):
            continue
        state = node_state(value_of(line, "State"))
        nodes[state] += 1
        partitions = [name for name in value_of(line, "Partitions").split(",") if name]
        for partition in partitions:
            in_partition["nodes", partition, state] += 1
        for (kind, use), amount in amounts_of(line, is_usable=state not in UNUSABLE).items():
            amounts[kind, use] += amount
            for partition in partitions:
                in_partition[kind, partition, use] += amount
    samples = [
        Sample("slurm_cluster_nodes", {"state": state}, count) for state, count in nodes.items()
    ]
    for kind in ("gpus", "cpus"):
        for use in ("allocated", "idle", "unavailable"):
            samples.append(Sample(f"slurm_cluster_{kind}", {"state": use}, amounts[kind, use]))
    for (kind, partition, state), count in in_partition.items():
        labels = {"partition": partition, "state": state}
        samples.append(Sample(f"slurm_cluster_partition_{kind}", labels, count))
    return samples


def amounts_of(line: str, *, is_usable: bool) -> dict[tuple[str, str], int]:
    """Return numbers of GPUs and CPUs of a node, by kind and use, from scontrol's line."""
    rest = "idle" if is_usable else "unavailable"
    used_gpus = gpus(value_of(line, "GresUsed"))
    used_cpus = int(value_of(line, "CPUAlloc") or 0)
    return {
        ("gpus", "allocated"): used_gpus,
        ("gpus", rest): gpus(value_of(line, "Gres")) - used_gpus,
        ("cpus", "allocated"): used_cpus,
        ("cpus", rest): int(value_of(line, "CPUTot") or 0) - used_cpus,
    }


def value_of(line: str, key: str) -> str:
    """Return a field of scontrol's line; empty if it is (null) or missing."""
    found = re.search(rf"(?:^| ){key}=(\S*)", line)
    return "" if not found or found[1] in ("(null)", "N/A") else found[1]


def node_state(text: str) -> str:
    """Return one word for a state with flags, such as IDLE*+DRAIN."""
    base, *flags = [part.strip("*~#!%$@^-").lower() for part in text.split("+")]
    if base in ("down", "unknown", ""):
        return base or "unknown"
    if "fail" in flags or "failing" in flags:
        return "fail"
    if "drain" in flags:
        return "drained" if base == "idle" else "draining"
    return base


def gpus(gres: str) -> int:
    """Return the GPUs of a Gres or GresUsed field: gpu:2, gpu:h100:8(S:0-1), gpu:(null):1(IDX:0)."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,]*)?:(\d+)(?=,|$)", plain))


def job_samples() -> list[Sample]:
    """Return jobs by state, partition and account, and the longest wait of each partition."""
    jobs: Counter[tuple[str, str, str]] = Counter()
    oldest: dict[str, float] = {}
    now = time.time()
    # A waiting array of any length is one line.
    for line in query("squeue", "--all", "--noheader", "--format", "%T|%P|%a|%V|%r").splitlines():
        fields = line.split("|", 4)
        if len(fields) != 5:
            continue
        state, partition, account, submitted, reason = fields
        jobs[state.lower(), partition, account] += 1
        if state == "PENDING" and reason not in NOT_WAITING:
            since = datetime.fromisoformat(submitted).replace(tzinfo=timezone.utc).timestamp()
            oldest[partition] = max(oldest.get(partition, 0), now - since)
    samples: list[Sample] = []
    for (state, partition, account), count in jobs.items():
        labels = {"state": state, "partition": partition, "account": account}
        samples.append(Sample("slurm_cluster_jobs", labels, count))
    for partition, seconds in oldest.items():
        labels = {"partition": partition}
        samples.append(Sample("slurm_queue_longest_wait_seconds", labels, round(seconds)))
    return samples


def scheduler_samples() -> list[Sample]:
    main, _, backfill = query("sdiag").partition("Backfilling stats")
    samples: list[Sample] = []
    for scheduler, text in (("main", main), ("backfill", backfill)):
        for key, value in re.findall(r"^\s*(\w[\w ]*):\s+(\d+)$", text, re.M):
            if key in CYCLES:
                metric, scale = CYCLES[key]
                samples.append(Sample(metric, {"scheduler": scheduler}, int(value) * scale))
            elif key in SCHEDULER:
                metric, labels = SCHEDULER[key]
                samples.append(Sample(metric, labels, int(value)))
    return samples


SOURCES: dict[str, Callable[[], list[Sample]]] = {
    "nodes": node_samples,
    "jobs": job_samples,
    "scheduler": scheduler_samples,
}


def collect() -> str:
    """Return the whole text. A failed source contributes no numbers, only the fact that it failed."""
    samples: list[Sample] = []
    for source, read in SOURCES.items():
        try:
            samples += read()
            success = 1
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            said = (getattr(error, "stderr", None) or "").strip()
            print(f"{source}: {error} {said}".strip(), file=sys.stderr, flush=True)
            success = 0
        samples.append(Sample("slurm_collector_success", {"source": source}, success))
    samples.append(Sample("slurm_collector_last_run_timestamp_seconds", {}, round(time.time())))
    return format_samples(samples, lambda name: name.endswith("_total"))


def main() -> int:
    def run(options: argparse.Namespace) -> bool:
        write(options.output, collect())
        return True

    return repeat(argparse.ArgumentParser(description=__doc__), run)


if __name__ == "__main__":
    sys.exit(main())
