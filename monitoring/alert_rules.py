"""Prometheus' recording and alert rules for a cluster.

Names of metrics are those of NVIDIA's dcgm-exporter (``default-counters.csv``), node_exporter, the collectors
in ``lifecycle/slurm/collectors`` and the trainer (``training_metrics.py``). On both schedulers,
dcgm-exporter's own label ``Hostname`` distinguishes the nodes. The workspace holds one cluster's metrics.
Rules of GPUs are by GPU: each job that one gets is a label of its metrics, and would be an alert of its own.
"""

from typing import Any

import yaml

from config.cluster import Cluster

IDLE_PERCENT = 5
"""DCGM_FI_DEV_GPU_UTIL is the share of time in which a kernel ran; one or two for a GPU that waits."""
APPLICATION_XIDS = (13, 31, 43, 45)
"""Errors of the program that ran, not of the GPU (NVIDIA, "Xid Errors", table of causes)."""
OLD_SECONDS = 600
"""Age of a collector's text, which is written at least every 30 seconds."""
STALL_SHARE = 0.1
"""Share of the time. Checkpoints that delay training for longer should be examined."""

_OF_NODES = "node_memory_MemTotal_bytes"
Rule = dict[str, Any]


def rule_groups(cluster: Cluster) -> dict[str, Any]:
    """Return the content of a rules file of Prometheus, for a cluster with the section ``observability``."""
    assert cluster.observability is not None
    groups = {
        "gpus": _gpu_rules(cluster.observability.idle_gpu_hours),
        "nodes": _node_rules() + (_slurm_rules() if cluster.scheduler == "slurm" else []),
        "training": _training_rules(),
    }
    return {"groups": [{"name": name, "rules": rules} for name, rules in groups.items()]}


def rules_text(cluster: Cluster) -> str:
    return yaml.safe_dump(rule_groups(cluster), sort_keys=False, width=100)


def _gpu_rules(idle_hours: int) -> list[Rule]:
    node = "Hostname, group, instance_type"
    gpu = f"gpu, {node}"
    programs = " or ".join(f"DCGM_FI_DEV_XID_ERRORS == {number}" for number in APPLICATION_XIDS)
    return [
        _record(
            "hyperpod:gpu_utilization:avg5m", f"max by ({gpu}) (avg_over_time(DCGM_FI_DEV_GPU_UTIL[5m]))"
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
            summary="{{ $value }} GPUs of node {{ $labels.Hostname }} {{ $labels.instance_type }} have done "
            f"next to nothing for {idle_hours} h, and bill as busy ones do",
            action="give them jobs, or set num_instances of their group lower and deploy; make destroy ends "
            "all",
        ),
        _alert(
            "GpuError",
            f"max by ({gpu}) (DCGM_FI_DEV_XID_ERRORS > 0 unless ({programs}))",
            severity="critical",
            summary="GPU {{ $labels.gpu }} of node {{ $labels.Hostname }} has reported Xid {{ $value }}",
            # dcgm-exporter keeps the last one for ever (https://github.com/NVIDIA/dcgm-exporter/issues/500).
            action="look it up in NVIDIA's table of Xid errors; have the node replaced if it is broken, else "
            "start its dcgm-exporter anew, which ends this",
        ),
        _alert(
            "GpuMemoryFault",
            f"max by ({gpu}) (DCGM_FI_DEV_ROW_REMAP_FAILURE > 0)",
            severity="critical",
            summary="GPU {{ $labels.gpu }} of node {{ $labels.Hostname }} has no spare rows of memory left "
            "for broken ones",
            action="have the node replaced",
        ),
    ]


def _node_rules() -> list[Rule]:
    return [
        _alert(
            "MetricsStopped",
            # A metric that every node has, because a collector may run and see no node. The alert ends an
            # hour after the last sample, so that a destroyed cluster raises no alarms.
            f"absent_over_time({_OF_NODES}[15m]) and on() "
            f"(count(count_over_time({_OF_NODES}[1h] offset 15m)) > 0)",
            minutes=5,
            severity="critical",
            summary="no metrics of nodes have come for 20 minutes: no other alert of them can be relied on",
            action="nothing, if the cluster was destroyed; else see whether what sends them runs",
        ),
        _alert(
            "DiskAlmostFull",
            'node_filesystem_avail_bytes{fstype=~"ext4|xfs"} / node_filesystem_size_bytes{fstype=~"ext4|xfs"}'
            " < 0.05",
            minutes=15,
            summary="{{ $labels.mountpoint }} of node {{ $labels.instance }} has {{ $value | "
            "humanizePercentage }} free",
            action="remove images of containers and caches that nobody needs",
        ),
    ]


def _slurm_rules() -> list[Rule]:
    return [
        _alert(
            "NodeSilent",
            'up{job=~"node|gpu"} == 0',
            # A new node is listed before it is set up.
            minutes=15,
            summary="the {{ $labels.job }} exporter of node {{ $labels.instance }} of group "
            "{{ $labels.group }} does not answer",
            action="sinfo -R on the head node tells what Slurm knows of it; HyperPod may be replacing it",
        ),
        _alert(
            "CollectorStopped",
            f"time() - node_textfile_mtime_seconds > {OLD_SECONDS}",
            minutes=5,
            summary="{{ $labels.file }} of node {{ $labels.instance }} is not written anew: its numbers are "
            "old",
            action="systemctl status of the service of that name on the node tells why",
        ),
        _alert(
            "SlurmSilent",
            # A collector that does not run reports nothing for any source.
            'slurm_collector_success == 0 or absent(slurm_collector_success{source="jobs"}) '
            'and on() up{job="prometheus"} == 1',
            minutes=15,
            severity="critical",
            summary="Slurm has not answered on its {{ $labels.source }} for 15 minutes",
            action="make connect, then systemctl status slurmctld slurm-metrics",
        ),
        _alert(
            "SlurmNodesUnusable",
            'sum by (state) (slurm_cluster_nodes{state=~"down|fail|drained"}) > 0',
            minutes=60,
            summary="{{ $value }} nodes have been {{ $labels.state }} for an hour: no job starts there",
            action="sinfo -R on the head node tells why; docs/runbook.md tells what to do",
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
            # The process must be there: one that evaluated and saved after its last step has come to an end.
            f"sum by ({run}) (increase(esm2_training_step_seconds_count[20m])) == 0 "
            f"and on ({run}) esm2_training_step_seconds_count",
            minutes=10,
            severity="critical",
            summary="run {{ $labels.run }} (job {{ $labels.job_id }}) has made no step for half an hour",
            action="make tail JOB={{ $labels.job_id }} shows its log; GPUs bill meanwhile",
        ),
        _alert(
            "CheckpointsHoldUpTraining",
            f"hyperpod:training_checkpoint_stall:ratio30m > {STALL_SHARE}",
            minutes=30,
            summary="run {{ $labels.run }} waits for checkpoints {{ $value | humanizePercentage }} of time",
            action="save less often, or give the file system more throughput",
        ),
    ]


def _record(name: str, expression: str) -> Rule:
    return {"record": name, "expr": expression}


def _alert(
    name: str, expression: str, *, summary: str, action: str, minutes: int = 0, severity: str = "warning"
) -> Rule:
    return {
        "alert": name,
        "expr": expression,
        "for": f"{minutes}m",
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "action": action},
    }
