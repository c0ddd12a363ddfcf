"""Recording and alert rules of Prometheus for a cluster.

Names of metrics are those of NVIDIA's dcgm-exporter (``default-counters.csv``), node_exporter, the collectors
in ``lifecycle/slurm/collectors`` and the trainer (``training_metrics.py``). On both schedulers, the label
``Hostname`` of dcgm-exporter distinguishes the nodes. A workspace contains the metrics of one cluster.

Rules for GPUs aggregate by GPU. Otherwise each job of a GPU would raise its own alert, because jobs are
labels of the GPU's metrics.
"""

from typing import Any

import yaml

from config.cluster import Cluster

IDLE_PERCENT = 5
"""Utilization below which a GPU is idle.

DCGM_FI_DEV_GPU_UTIL is the share of time in which a kernel ran. A waiting GPU has one or two percent.
"""
APPLICATION_XIDS = (13, 31, 43, 45)
"""Xid errors of the running program instead of the GPU (NVIDIA, "Xid Errors", table of causes)."""
MIN_FREE_DISK = 0.05
"""Share of a node's disk below which it is almost full."""
OLD_SECONDS = 600
"""Age from which a collector's file is stale. Collectors write their files at least every 30 seconds."""
STALL_SHARE = 0.1
"""Share of the time that trainings may wait for checkpoints."""

_NODE_METRIC = "node_memory_MemTotal_bytes"
"""Metric that every node has. Other metrics can be missing while their collector runs."""
_LOCAL_DISKS = 'fstype=~"ext4|xfs"'
Rule = dict[str, Any]


def rule_groups(cluster: Cluster) -> dict[str, Any]:
    """Return the content of a rules file of Prometheus, for a cluster with the section ``observability``."""
    assert cluster.observability is not None
    node_rules = _node_rules()
    if cluster.scheduler == "slurm":
        node_rules += _slurm_rules()
    groups = {
        "gpus": _gpu_rules(cluster.observability.idle_gpu_hours),
        "nodes": node_rules,
        "training": _training_rules(),
    }
    return {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}


def rules_text(cluster: Cluster) -> str:
    """Return the rules file of a cluster."""
    return yaml.safe_dump(rule_groups(cluster), sort_keys=False, width=100)


def _gpu_rules(idle_hours: int) -> list[Rule]:
    node = "Hostname, group, instance_type"
    gpu = f"gpu, {node}"
    programs = " or ".join(f"DCGM_FI_DEV_XID_ERRORS == {number}" for number in APPLICATION_XIDS)
    return [
        _record(
            "hyperpod:gpu_utilization:avg5m",
            f"max by ({gpu}) (avg_over_time(DCGM_FI_DEV_GPU_UTIL[5m]))",
        ),
        _record(
            "hyperpod:idle_gpus:count",
            f"count by ({node}) (hyperpod:gpu_utilization:avg5m < {IDLE_PERCENT})",
        ),
        _alert(
            "IdleGpus",
            "hyperpod:idle_gpus:count > 0",
            minutes=60 * idle_hours,
            severity="cost",
            summary="{{ $value }} GPUs of node {{ $labels.Hostname }} {{ $labels.instance_type }} have been "
            f"idle for {idle_hours} h, and cost as much as busy ones",
            action="run jobs on them, or lower num_instances of their group and deploy; make destroy deletes "
            "all nodes",
        ),
        _alert(
            "GpuError",
            f"max by ({gpu}) (DCGM_FI_DEV_XID_ERRORS > 0 unless ({programs}))",
            severity="critical",
            summary="GPU {{ $labels.gpu }} of node {{ $labels.Hostname }} has reported Xid {{ $value }}",
            # dcgm-exporter reports the last error until it is restarted
            # (https://github.com/NVIDIA/dcgm-exporter/issues/500).
            action="look the number up in NVIDIA's table of Xid errors; have the node replaced if the GPU is "
            "broken, or restart its dcgm-exporter, which ends the alert",
        ),
        _alert(
            "GpuMemoryFault",
            f"max by ({gpu}) (DCGM_FI_DEV_ROW_REMAP_FAILURE > 0)",
            severity="critical",
            summary="GPU {{ $labels.gpu }} of node {{ $labels.Hostname }} has no spare memory rows left to "
            "replace broken ones",
            action="have the node replaced",
        ),
    ]


def _node_rules() -> list[Rule]:
    return [
        _alert(
            "MetricsStopped",
            # The alert ends an hour after the last sample, so that it does not continue after the cluster is
            # destroyed.
            f"absent_over_time({_NODE_METRIC}[15m]) and on() "
            f"(count(count_over_time({_NODE_METRIC}[1h] offset 15m)) > 0)",
            minutes=5,
            severity="critical",
            summary="no metrics of nodes have arrived for 20 minutes, so other alerts about nodes are "
            "unreliable",
            action="ignore this if the cluster was destroyed; otherwise check that the collectors run",
        ),
        _alert(
            "DiskAlmostFull",
            f"node_filesystem_avail_bytes{{{_LOCAL_DISKS}}} / node_filesystem_size_bytes{{{_LOCAL_DISKS}}}"
            f" < {MIN_FREE_DISK}",
            minutes=15,
            summary="{{ $labels.mountpoint }} of node {{ $labels.instance }} has {{ $value | "
            "humanizePercentage }} free",
            action="remove unused container images and caches",
        ),
    ]


def _slurm_rules() -> list[Rule]:
    return [
        _alert(
            "NodeSilent",
            'up{job=~"node|gpu"} == 0',
            # A new node is in the list before it is set up.
            minutes=15,
            summary="the {{ $labels.job }} exporter of node {{ $labels.instance }} of group "
            "{{ $labels.group }} does not answer",
            action="sinfo -R on the head node shows the node's state; HyperPod may be replacing it",
        ),
        _alert(
            "CollectorStopped",
            f"time() - node_textfile_mtime_seconds > {OLD_SECONDS}",
            minutes=5,
            summary="metrics file {{ $labels.file }} of node {{ $labels.instance }} is stale",
            action="systemctl status of the service of that name on the node shows why",
        ),
        _alert(
            "SlurmSilent",
            # A collector that does not run reports no source at all.
            'slurm_collector_success == 0 or absent(slurm_collector_success{source="jobs"}) '
            'and on() up{job="prometheus"} == 1',
            minutes=15,
            severity="critical",
            summary="Slurm has not answered queries about its {{ $labels.source }} for 15 minutes",
            action="run make connect, then systemctl status slurmctld slurm-metrics",
        ),
        _alert(
            "SlurmNodesUnusable",
            'sum by (state) (slurm_cluster_nodes{state=~"down|fail|drained"}) > 0',
            minutes=60,
            summary="{{ $value }} nodes have been {{ $labels.state }} for an hour, so no job starts on them",
            action="sinfo -R on the head node shows why; docs/runbook.md describes what to do",
        ),
    ]


def _training_rules() -> list[Rule]:
    run = "run, job_id"
    return [
        _record(
            "hyperpod:training_residues_per_second:rate5m",
            f"sum by ({run}) (rate(esm2_training_residues_total[5m]))",
        ),
        _record(
            "hyperpod:training_checkpoint_stall:ratio30m",
            f"sum by ({run}) (rate(esm2_training_checkpoint_stall_seconds_sum[30m]))",
        ),
        _alert(
            "TrainingStalled",
            # The process must still run, because a process that ended has no steps either.
            f"sum by ({run}) (increase(esm2_training_step_seconds_count[20m])) == 0 "
            f"and on ({run}) esm2_training_step_seconds_count",
            minutes=10,
            severity="critical",
            summary="run {{ $labels.run }} (job {{ $labels.job_id }}) has completed no step for half an hour",
            action="make tail JOB={{ $labels.job_id }} shows its log; its GPUs continue to bill",
        ),
        _alert(
            "CheckpointsHoldUpTraining",
            f"hyperpod:training_checkpoint_stall:ratio30m > {STALL_SHARE}",
            minutes=30,
            summary="run {{ $labels.run }} waits for checkpoints {{ $value | humanizePercentage }} of the "
            "time",
            action="save less often, or give the file system more throughput",
        ),
        _alert(
            "SlowProcess",
            # The trainer publishes a process once it has been slow for three minutes.
            f"max by ({run}, process, node, gpu) (esm2_training_slow_process_ratio) > 0",
            summary="process {{ $labels.process }} of run {{ $labels.run }}, on node {{ $labels.node }} "
            "{{ with $labels.gpu }}with GPU {{ . }} {{ end }}takes {{ $value | humanize }} times as long as "
            "the median, and all others wait for it",
            action="docs/runbook.md describes how to examine the GPU and replace the node",
        ),
    ]


def _record(name: str, expression: str) -> Rule:
    """Return a recording rule."""
    return {"record": name, "expr": expression}


def _alert(
    name: str,
    expression: str,
    *,
    summary: str,
    action: str,
    minutes: int = 0,
    severity: str = "warning",
) -> Rule:
    """Return an alert rule.

    Args:
        name: name of the alert.
        expression: PromQL of the condition.
        summary: event in one sentence, as a template of Prometheus.
        action: advice in one sentence, as a template of Prometheus.
        minutes: time for which the condition must last.
        severity: cost, warning or critical.
    """
    return {
        "alert": name,
        "expr": expression,
        "for": f"{minutes}m",
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "action": action},
    }
