"""Queues of teams by Kueue, HyperPod's task governance: names of Kueue's list of metrics.

https://kueue.sigs.k8s.io/docs/reference/metrics/
"""

from __future__ import annotations

from monitoring.dashboards.model import RATE, Model, Panel, Variable, dashboard, percentiles

_OF = 'cluster_queue=~"$queue"'


def kueue_queue() -> Model:
    return dashboard(
        uid="hyperpod-queue",
        title="Kueue queues",
        about="Which team waits, for how long, and whose jobs are stopped for others.",
        variables=[Variable("queue", "Queue", "kueue_pending_workloads", "cluster_queue")],
        rows={
            "Jobs": (
                Panel(
                    "Waiting",
                    f"sum by (cluster_queue, status) (kueue_pending_workloads{{{_OF}}})",
                    "{{cluster_queue}} {{status}}",
                    decimals=0,
                    about="Active ones are tried again and again; inadmissible ones wait until something "
                    "changes, and may ask for more than their team can ever get.",
                ),
                Panel(
                    "Running",
                    f"sum by (cluster_queue) (kueue_admitted_active_workloads{{{_OF}}})",
                    "{{cluster_queue}}",
                    stacked=True,
                    decimals=0,
                ),
                Panel(
                    "Wait before admission",
                    percentiles(
                        "kueue_admission_wait_time_seconds",
                        "cluster_queue",
                        _OF,
                        legend="{{cluster_queue}}",
                        shares=(0.5, 0.95),
                    ),
                    unit="s",
                ),
            ),
            "Admissions": (
                Panel(
                    "Admitted",
                    f"sum by (cluster_queue) (increase(kueue_admitted_workloads_total{{{_OF}}}[{RATE}]))",
                    "{{cluster_queue}}",
                ),
                Panel(
                    "Preempted, or stopped because nodes were missing",
                    "sum by (cluster_queue, reason) "
                    f"(increase(kueue_evicted_workloads_total{{{_OF}}}[{RATE}]))",
                    "{{cluster_queue}} {{reason}}",
                    about="A training run saves before it stops, and resumes from there later.",
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
