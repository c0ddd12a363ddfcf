"""Queues of teams by Kueue, HyperPod's task governance: names of Kueue's list of metrics.

https://kueue.sigs.k8s.io/docs/reference/metrics/
"""

from __future__ import annotations

from monitoring.dashboards.model import RATE, Model, Panel, Query, Row, Variable, dashboard

_QUEUE = Variable("queue", "Queue", "kueue_pending_workloads", "cluster_queue")
_OF = 'cluster_queue=~"$queue"'
_PERCENTILES = (0.5, 0.95)


def kueue_queue() -> Model:
    return dashboard(
        uid="hyperpod-queue",
        title="Kueue queues",
        about="Which team waits, for how long, and whose jobs are stopped for others.",
        variables=[_QUEUE],
        rows=[
            Row(
                "Jobs",
                (
                    Panel(
                        "Waiting",
                        Query(
                            f"sum by (cluster_queue, status) (kueue_pending_workloads{{{_OF}}})",
                            "{{cluster_queue}} {{status}}",
                        ),
                        decimals=0,
                        about="Active ones are tried again and again; inadmissible ones wait until something "
                        "changes, and may ask for more than their team can ever get.",
                    ),
                    Panel(
                        "Running",
                        Query(
                            f"sum by (cluster_queue) (kueue_admitted_active_workloads{{{_OF}}})",
                            "{{cluster_queue}}",
                        ),
                        stacked=True,
                        decimals=0,
                    ),
                    Panel(
                        "Wait before admission",
                        tuple(
                            Query(
                                f"histogram_quantile({share}, sum by (cluster_queue, le) "
                                f"(rate(kueue_admission_wait_time_seconds_bucket{{{_OF}}}[{RATE}])))",
                                f"{{{{cluster_queue}}}} p{share * 100:.0f}",
                            )
                            for share in _PERCENTILES
                        ),
                        unit="s",
                    ),
                ),
            ),
            Row(
                "Admissions",
                (
                    Panel(
                        "Admitted",
                        Query(
                            "sum by (cluster_queue) "
                            f"(increase(kueue_admitted_workloads_total{{{_OF}}}[{RATE}]))",
                            "{{cluster_queue}}",
                        ),
                    ),
                    Panel(
                        "Stopped for others, or for want of nodes",
                        Query(
                            "sum by (cluster_queue, reason) "
                            f"(increase(kueue_evicted_workloads_total{{{_OF}}}[{RATE}]))",
                            "{{cluster_queue}} {{reason}}",
                        ),
                        about="A training saves before it goes, and goes on from there later.",
                    ),
                    Panel(
                        "Attempts",
                        Query(
                            f"sum by (result) (rate(kueue_admission_attempts_total[{RATE}]))", "{{result}}"
                        ),
                        unit="cps",
                    ),
                ),
            ),
        ],
    )
