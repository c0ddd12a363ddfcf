"""Dashboards of queues: Slurm's queue, or the queues of teams in Kueue (HyperPod's task governance).

Slurm's metrics are those of ``lifecycle/slurm/collectors/slurm_metrics.py``, and Kueue's those of
https://kueue.sigs.k8s.io/docs/reference/metrics/.
"""

from monitoring.dashboards.model import RATE, Model, Panel, Query, Variable, dashboard, percentiles

_PARTITION = 'partition=~"$partition"'
_QUEUE = 'cluster_queue=~"$queue"'


def slurm_queue() -> Model:
    """Return the dashboard of Slurm's queue."""
    return dashboard(
        uid="hyperpod-queue",
        title="Slurm queue",
        about="Waiting jobs, free resources, and the load of the scheduler.",
        variables=[
            Variable("partition", "Partition", "slurm_cluster_partition_nodes", "partition")
        ],
        rows={
            "Jobs": (
                _by_state("Jobs", "slurm_cluster_jobs"),
                Panel(
                    "Jobs by account",
                    f"sum by (account, state) (slurm_cluster_jobs{{{_PARTITION}}})",
                    "{{account}} {{state}}",
                    decimals=0,
                ),
                Panel(
                    "Longest wait",
                    f"slurm_queue_longest_wait_seconds{{{_PARTITION}}}",
                    "{{partition}}",
                    unit="s",
                    about="Wait of the first job that waits for nodes, not for a time or another job.",
                ),
            ),
            "Nodes and what they have": (
                _by_state(
                    "Nodes",
                    "slurm_cluster_partition_nodes",
                    about="A node that is in two of the chosen partitions counts twice.",
                ),
                _by_state(
                    "GPUs",
                    "slurm_cluster_partition_gpus",
                    about="Idle GPUs cost as much as allocated ones.",
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
                    about="Commands of users wait until the pass ends, so users notice long passes.",
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
    """Return a panel of the sums of a metric by state."""
    by_state = f"sum by (state) ({metric}{{{_PARTITION}}})"
    return Panel(title, by_state, "{{state}}", stacked=True, decimals=0, about=about)


def kueue_queue() -> Model:
    """Return the dashboard of Kueue's queues."""
    return dashboard(
        uid="hyperpod-queue",
        title="Kueue queues",
        about="Waiting and running jobs of teams, the time until admission, and jobs that were stopped.",
        variables=[Variable("queue", "Queue", "kueue_pending_workloads", "cluster_queue")],
        rows={
            "Jobs": (
                Panel(
                    "Waiting",
                    f"sum by (cluster_queue, status) (kueue_pending_workloads{{{_QUEUE}}})",
                    "{{cluster_queue}} {{status}}",
                    decimals=0,
                    about="Active jobs are tried repeatedly. Inadmissible jobs wait until something changes, "
                    "and may request more than their team can have.",
                ),
                Panel(
                    "Running",
                    f"sum by (cluster_queue) (kueue_admitted_active_workloads{{{_QUEUE}}})",
                    "{{cluster_queue}}",
                    stacked=True,
                    decimals=0,
                ),
                Panel(
                    "Wait before admission",
                    percentiles(
                        "kueue_admission_wait_time_seconds",
                        "cluster_queue",
                        _QUEUE,
                        legend="{{cluster_queue}}",
                        shares=(0.5, 0.95),
                    ),
                    unit="s",
                ),
            ),
            "Admissions": (
                Panel(
                    "Admitted",
                    f"sum by (cluster_queue) (increase(kueue_admitted_workloads_total{{{_QUEUE}}}[{RATE}]))",
                    "{{cluster_queue}}",
                ),
                Panel(
                    "Stopped for others, or because nodes were missing",
                    "sum by (cluster_queue, reason) "
                    f"(increase(kueue_evicted_workloads_total{{{_QUEUE}}}[{RATE}]))",
                    "{{cluster_queue}} {{reason}}",
                    about="A training saves before it stops and resumes from there later.",
                ),
                Panel(
                    "Attempts",
                    f"sum by (result) (rate(kueue_admission_attempts_total[{RATE}]))",
                    "{{result}}",
                    unit="cps",
                ),
            ),
        },
    )
