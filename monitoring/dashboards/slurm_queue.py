"""Slurm's queue and nodes: metrics of ``lifecycle/slurm/collectors/slurm_metrics.py``."""

from __future__ import annotations

from monitoring.dashboards.model import RATE, Model, Panel, Query, Variable, dashboard

_OF = 'partition=~"$partition"'


def slurm_queue() -> Model:
    return dashboard(
        uid="hyperpod-queue",
        title="Slurm queue",
        about="Who waits for what, what is free, and whether the scheduler keeps up.",
        variables=[Variable("partition", "Partition", "slurm_cluster_partition_nodes", "partition")],
        rows={
            "Jobs": (
                _by_state("Jobs", "slurm_cluster_jobs"),
                Panel(
                    "Jobs by account",
                    f"sum by (account, state) (slurm_cluster_jobs{{{_OF}}})",
                    "{{account}} {{state}}",
                    decimals=0,
                ),
                Panel(
                    "Longest wait",
                    f"slurm_queue_longest_wait_seconds{{{_OF}}}",
                    "{{partition}}",
                    unit="s",
                    about="Of the first job that waits for nodes, and not for a time or another job.",
                ),
            ),
            "Nodes and what they have": (
                _by_state(
                    "Nodes",
                    "slurm_cluster_partition_nodes",
                    about="One that is in two of the chosen partitions counts twice.",
                ),
                _by_state(
                    "GPUs", "slurm_cluster_partition_gpus", about="Idle ones bill as allocated ones do."
                ),
                _by_state("CPUs", "slurm_cluster_partition_cpus"),
            ),
            "The scheduler": (
                Panel(
                    "What became of jobs",
                    f"increase(slurm_scheduler_jobs_total[{RATE}])",
                    "{{event}}",
                    decimals=1,
                ),
                Panel(
                    "A pass over the queue takes",
                    "slurm_scheduler_last_cycle_seconds",
                    "{{scheduler}}",
                    unit="s",
                    about="Commands of users wait for it: some seconds are felt.",
                ),
                Panel(
                    "Threads and messages that wait",
                    (
                        Query("slurm_scheduler_threads", "threads of slurmctld"),
                        Query("slurm_scheduler_agent_queue_size", "messages to nodes that wait"),
                    ),
                    decimals=0,
                    about="Near 256 threads (Slurm's MAX_SERVER_THREADS), commands time out.",
                ),
            ),
        },
    )


def _by_state(title: str, metric: str, about: str = "") -> Panel:
    by_state = f"sum by (state) ({metric}{{{_OF}}})"
    return Panel(title, by_state, "{{state}}", stacked=True, decimals=0, about=about)
