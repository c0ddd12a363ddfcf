"""Expected alerts for given metrics, in the form of promtool's rule tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from config.reading.loader import load_cluster
from monitoring.alert_rules import rule_groups
from tests.monitoring import exporters

CLUSTERS = {
    "slurm": load_cluster(Path("clusters/slurm-p5.yaml")),
    "eks": load_cluster(Path("clusters/eks-p5.yaml")),
}
# What Slurm's list of nodes adds to what exporters tell.
NODE = {"group": "p5", "instance_type": "ml.p5.48xlarge"}
BUSY, IDLE = exporters.GPU_NODES
TRAINING = {"run": exporters.RUN, "job_id": exporters.JOB_ID}


def rules(scheduler: str) -> list[dict[str, Any]]:
    return [rule for group in rule_groups(CLUSTERS[scheduler])["groups"] for rule in group["rules"]]


def series(metric: str, values: str, **labels: str) -> dict[str, str]:
    inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return {"series": f"{metric}{{{inner}}}", "values": values}


def gpus(
    metric: str, node: str, values: str, *, count: int = exporters.GPUS_PER_NODE, **job: str
) -> list[dict[str, str]]:
    """Labels of dcgm-exporter for a node's first GPU, with the job's labels."""
    told = re.findall(rf"^{metric}\{{(.*)\}} ", exporters.gpus(), re.MULTILINE)
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', text)) for text in told]
    of_node = [found for found in labels if found["Hostname"] == node][:count]
    assert len(of_node) == count
    return [series(metric, values, **{**found, **NODE, **job}) for found in of_node]


def case(
    input_series: list[dict[str, str]], alert: str, times: dict[str, list[dict[str, str]]]
) -> dict[str, Any]:
    """At each time the labels of those that are firing, and no others, besides the severity."""
    (severity,) = {
        rule["labels"]["severity"] for rule in rules("slurm") if rule.get("alert") == alert
    }
    return {
        "name": alert,
        "interval": "1m",
        "input_series": input_series,
        "alert_rule_test": [
            {
                "alertname": alert,
                "eval_time": time,
                "exp_alerts": [
                    {
                        "exp_labels": {
                            "severity": severity,
                            **{k: v for k, v in labels.items() if k != "says"},
                        },
                        "exp_annotations": _annotations(alert, labels["says"]),
                    }
                    for labels in firing
                ],
            }
            for time, firing in times.items()
        ],
    }


def _annotations(alert: str, summary: str) -> dict[str, str]:
    (action,) = {
        rule["annotations"]["action"] for rule in rules("slurm") if rule.get("alert") == alert
    }
    return {"summary": summary, "action": action.replace("{{ $labels.job_id }}", exporters.JOB_ID)}


def idle(count: int) -> dict[str, str]:
    says = f"{count} GPUs of node {IDLE} ml.p5.48xlarge have been idle for 2 h, and cost as much as busy ones"
    return {"Hostname": IDLE, **NODE, "says": says}


XID = "DCGM_FI_DEV_XID_ERRORS"
GPU_0 = {"gpu": "0", "Hostname": BUSY, **NODE}
UP = series("up", "1x240", job="prometheus", instance="head")
STEPS = "esm2_training_step_seconds_count"
SLOW = "esm2_training_slow_process_ratio"
CASES = [
    # One node computes, the other waits: its alert comes after two hours, and ends with work.
    case(
        [
            *gpus("DCGM_FI_DEV_GPU_UTIL", BUSY, "93x300"),
            *gpus("DCGM_FI_DEV_GPU_UTIL", IDLE, "1x180 95x120"),
        ],
        "IdleGpus",
        {"1h50m": [], "2h15m": [idle(8)], "3h30m": []},
    ),
    # Some of a node's GPUs.
    case(
        [
            *gpus("DCGM_FI_DEV_GPU_UTIL", IDLE, "0x180", count=3),
            *gpus("DCGM_FI_DEV_GPU_UTIL", IDLE, "95x180")[3:],
        ],
        "IdleGpus",
        {"2h15m": [idle(3)]},
    ),
    # A job an hour is no idleness, nor is a node that has gone.
    case(
        gpus("DCGM_FI_DEV_GPU_UTIL", IDLE, "0x60 90x20 0x60 90x20"),
        "IdleGpus",
        {"2h15m": [], "2h35m": []},
    ),
    case(gpus("DCGM_FI_DEV_GPU_UTIL", IDLE, "0x60 stale"), "IdleGpus", {"2h15m": []}),
    # A GPU of which a job has just ended is one.
    case(
        [
            *gpus("DCGM_FI_DEV_GPU_UTIL", IDLE, "0x133 stale"),
            *gpus("DCGM_FI_DEV_GPU_UTIL", IDLE, "_x134 0x60", hpc_job="0"),
        ],
        "IdleGpus",
        {"2h15m": [idle(8)]},
    ),
    # Also with the next job: what a GPU has reported stays.
    case(
        [
            *gpus(XID, BUSY, "0x5 79x20 stale", count=1),
            *gpus(XID, BUSY, "_x25 79x60", count=1, hpc_job="4712"),
            *gpus(XID, IDLE, "31x60"),
        ],
        "GpuError",
        {
            "4m": [],
            "8m": [{**GPU_0, "says": f"GPU 0 of node {BUSY} has reported Xid 79"}],
            "40m": [{**GPU_0, "says": f"GPU 0 of node {BUSY} has reported Xid 79"}],
        },
    ),
    case(
        gpus("DCGM_FI_DEV_ROW_REMAP_FAILURE", BUSY, "0x5 1x60", count=1),
        "GpuMemoryFault",
        {
            "4m": [],
            "8m": [
                {
                    **GPU_0,
                    "says": f"GPU 0 of node {BUSY} has no spare memory rows left to replace broken ones",
                }
            ],
        },
    ),
    # Once, and not for ever after; also where only what collects them tells of itself.
    case(
        [series("node_memory_MemTotal_bytes", "1x60 stale", instance=BUSY), UP],
        "MetricsStopped",
        {
            "70m": [],
            "85m": [
                {
                    "says": "no metrics of nodes have arrived for 20 minutes, so other alerts about nodes "
                    "are unreliable"
                }
            ],
            "3h": [],
        },
    ),
    case(
        [
            series(
                f"node_filesystem_{what}_bytes",
                f"{size}x60",
                fstype=kind,
                mountpoint=place,
                instance=BUSY,
            )
            for kind, place, avail in (
                ("ext4", "/", 4),
                ("ext4", "/opt/sagemaker", 40),
                ("lustre", "/fsx", 1),
            )
            for what, size in (("size", 100), ("avail", avail))
        ],
        "DiskAlmostFull",
        {
            "20m": [
                {
                    "fstype": "ext4",
                    "mountpoint": "/",
                    "instance": BUSY,
                    "says": f"/ of node {BUSY} has 4% free",
                }
            ]
        },
    ),
    case(
        [
            series("up", "1x10 0x60", job="gpu", instance=BUSY, group="p5"),
            series("up", "1x60", job="node", instance=BUSY, group="p5"),
            # A training that prepares its data, or is over.
            series("up", "0x60", job="training", instance=BUSY),
        ],
        "NodeSilent",
        {
            "20m": [],
            "30m": [
                {
                    "job": "gpu",
                    "instance": BUSY,
                    "group": "p5",
                    "says": f"the gpu exporter of node {BUSY} of group p5 does not answer",
                }
            ],
        },
    ),
    case(
        [
            series(
                "node_textfile_mtime_seconds",
                "0+60x60",
                file="/t/slurm_metrics.prom",
                instance="head",
            ),
            series(
                "node_textfile_mtime_seconds", "0+60x20 1200x40", file="/t/efa.prom", instance=BUSY
            ),
        ],
        "CollectorStopped",
        {
            "30m": [],
            "40m": [
                {
                    "file": "/t/efa.prom",
                    "instance": BUSY,
                    "says": f"metrics file /t/efa.prom of node {BUSY} is stale",
                }
            ],
        },
    ),
    case(
        [
            series("slurm_collector_success", "0x60", source="nodes"),
            series("slurm_collector_success", "1x60", source="jobs"),
            UP,
        ],
        "SlurmSilent",
        {
            "20m": [
                {
                    "source": "nodes",
                    "says": "Slurm has not answered queries about its nodes for 15 minutes",
                }
            ]
        },
    ),
    # Nothing tells of it; and a cluster that is no more.
    case(
        [series("slurm_collector_success", "1x20 stale", source="jobs"), UP],
        "SlurmSilent",
        {
            "30m": [],
            "40m": [
                {
                    "source": "jobs",
                    "says": "Slurm has not answered queries about its jobs for 15 minutes",
                }
            ],
        },
    ),
    case(
        [series("slurm_collector_success", "1x20 stale", source="jobs")], "SlurmSilent", {"40m": []}
    ),
    case(
        [
            series("slurm_cluster_nodes", "0x10 2x120", state="down"),
            series("slurm_cluster_nodes", "6x130", state="allocated"),
            series("slurm_cluster_nodes", "0x130", state="drained"),
        ],
        "SlurmNodesUnusable",
        {
            "60m": [],
            "75m": [
                {
                    "state": "down",
                    "says": "2 nodes have been down for an hour, so no job starts on them",
                }
            ],
        },
    ),
    # Twenty minutes of steps, then none; others that have ended, one after a long evaluation.
    case(
        [
            series(STEPS, "0+10x20 200x60", instance=BUSY, **TRAINING),
            series(STEPS, "0+10x20 stale", instance=BUSY, run="ended", job_id="1"),
            series(STEPS, "0+10x20 200x16 stale", instance=BUSY, run="evaluated", job_id="2"),
        ],
        "TrainingStalled",
        {
            "30m": [],
            "55m": [
                {**TRAINING, "says": "run run (job 4711) has completed no step for half an hour"}
            ],
        },
    ),
    # Twelve seconds of each minute, and one.
    case(
        [
            series("esm2_training_checkpoint_stall_seconds_sum", "0+12x100", **TRAINING),
            series(
                "esm2_training_checkpoint_stall_seconds_sum", "0+1x100", run="other", job_id="2"
            ),
        ],
        "CheckpointsHoldUpTraining",
        {"80m": [{**TRAINING, "says": "run run waits for checkpoints 20% of the time"}]},
    ),
    # A process with a GPU and one without, until they are slow no longer.
    case(
        [
            series(SLOW, "_x10 1.43x20 stale", process="9", node=BUSY, gpu="3", **TRAINING),
            series(SLOW, "_x40 1.2x20 stale", process="1", node=BUSY, gpu="", **TRAINING),
        ],
        "SlowProcess",
        {
            "9m": [],
            "15m": [
                {
                    **TRAINING,
                    "process": "9",
                    "node": BUSY,
                    "gpu": "3",
                    "says": f"process 9 of run run, on node {BUSY} with GPU 3 takes 1.43 times as long as "
                    "the median, and all others wait for it",
                }
            ],
            "35m": [],
            "45m": [
                {
                    **TRAINING,
                    "process": "1",
                    "node": BUSY,
                    "says": f"process 1 of run run, on node {BUSY} takes 1.2 times as long as the median, "
                    "and all others wait for it",
                }
            ],
        },
    ),
]
