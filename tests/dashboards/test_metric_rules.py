"""Rules ask for what is emitted, and Prometheus' own tool finds that they alarm when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.alert_routes import alert_manager_config, alert_manager_definition
from config.dashboards.selection import Scheduler
from config.loader import load_cluster
from config.metric_rules import rule_groups, rules_text
from tests.dashboards import exporters
from tests.dashboards.promql import metric_names

CLUSTERS = {
    "slurm": load_cluster(Path("clusters/slurm-p5.yaml")),
    "eks": load_cluster(Path("clusters/eks-p5.yaml")),
}
BY_SCHEDULER = pytest.mark.parametrize("scheduler", CLUSTERS)
# What Slurm's list of nodes adds to what exporters tell.
NODE = {"group": "p5", "instance_type": "ml.p5.48xlarge"}
BUSY, IDLE = exporters.GPU_NODES
TRAINING = {"run": exporters.RUN, "job_id": exporters.JOB_ID}


def rules(scheduler: str) -> list[dict[str, Any]]:
    return [rule for group in rule_groups(CLUSTERS[scheduler])["groups"] for rule in group["rules"]]


@BY_SCHEDULER
def test_every_metric_of_a_rule_is_emitted(scheduler: Scheduler, emitted: dict[Scheduler, set[str]]) -> None:
    recorded: set[str] = set()
    for rule in rules(scheduler):
        asked = metric_names(rule["expr"])
        assert asked and asked <= emitted[scheduler] | recorded, rule
        recorded |= {rule["record"]} if "record" in rule else set()


@BY_SCHEDULER
def test_every_alert_says_what_has_happened_and_what_to_do(scheduler: str) -> None:
    alerts = [rule for rule in rules(scheduler) if "alert" in rule]
    assert len(alerts) >= 6
    for alert in alerts:
        assert set(alert["annotations"]) == {"summary", "action"}
        assert alert["labels"]["severity"] in ("cost", "warning", "critical")


def test_rules_are_of_clusters_that_are_watched() -> None:
    with pytest.raises(ValueError, match="observability: got nothing"):
        rules_text(load_cluster(Path("clusters/slurm.yaml")))


def series(metric: str, values: str, **labels: str) -> dict[str, str]:
    inner = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return {"series": f"{metric}{{{inner}}}", "values": values}


def gpus(
    metric: str, node: str, values: str, *, count: int = exporters.GPUS_PER_NODE
) -> list[dict[str, str]]:
    """As dcgm-exporter tells of the first of a node's GPUs."""
    told = re.findall(rf"^{metric}\{{(.*)\}} ", exporters.gpus(), re.MULTILINE)
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', text)) for text in told]
    of_node = [found for found in labels if found["Hostname"] == node][:count]
    assert len(of_node) == count
    return [series(metric, values, **found, **NODE) for found in of_node]


def case(
    input_series: list[dict[str, str]], alert: str, times: dict[str, list[dict[str, str]]]
) -> dict[str, Any]:
    """At each time the labels of those that are firing, and no others, besides the severity."""
    (severity,) = {rule["labels"]["severity"] for rule in rules("slurm") if rule.get("alert") == alert}
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
    (action,) = {rule["annotations"]["action"] for rule in rules("slurm") if rule.get("alert") == alert}
    return {"summary": summary, "action": action.replace("{{ $labels.job_id }}", exporters.JOB_ID)}


def idle(count: int) -> dict[str, str]:
    says = (
        f"{count} GPUs of node {IDLE} ml.p5.48xlarge have done next to nothing for 2 h, "
        "and bill as busy ones do"
    )
    return {"Hostname": IDLE, **NODE, "says": says}


XID = "DCGM_FI_DEV_XID_ERRORS"
GPU_0 = dict(re.findall(r'(\w+)="([^"]*)"', gpus(XID, BUSY, "0", count=1)[0]["series"]))
UP = series("up", "1x60 stale", job="node", instance=BUSY)
STEPS = "esm2_training_step_seconds_count"
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
    case(gpus("DCGM_FI_DEV_GPU_UTIL", IDLE, "0x60 90x20 0x60 90x20"), "IdleGpus", {"2h15m": [], "2h35m": []}),
    case(gpus("DCGM_FI_DEV_GPU_UTIL", IDLE, "0x60 stale"), "IdleGpus", {"2h15m": []}),
    case(
        [*gpus(XID, BUSY, "0x5 79x60", count=1), *gpus(XID, IDLE, "31x60")],
        "GpuError",
        {"4m": [], "8m": [{**GPU_0, "says": f"GPU 0 of node {BUSY} has reported Xid 79"}]},
    ),
    case(
        gpus("DCGM_FI_DEV_ROW_REMAP_FAILURE", BUSY, "0x5 1x60", count=1),
        "GpuMemoryFault",
        {
            "4m": [],
            "8m": [
                {**GPU_0, "says": f"GPU 0 of node {BUSY} has no spare rows of memory left for broken ones"}
            ],
        },
    ),
    # Once, and not for ever after.
    case(
        [UP],
        "MetricsStopped",
        {
            "70m": [],
            "85m": [{"says": "no metrics have come for 20 minutes: no other alert of them can be relied on"}],
            "3h": [],
        },
    ),
    case(
        [
            series(
                f"node_filesystem_{what}_bytes", f"{size}x60", fstype=kind, mountpoint=place, instance=BUSY
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
            series("up", "1x10 0x60", job="node", instance=BUSY, group="p5"),
            # A training that prepares its data, or is over.
            series("up", "0x60", job="training", instance=BUSY),
        ],
        "NodeSilent",
        {
            "15m": [],
            "25m": [
                {
                    "job": "node",
                    "instance": BUSY,
                    "group": "p5",
                    "says": f"node {BUSY} of group p5 sends no metrics",
                }
            ],
        },
    ),
    case(
        [
            series("slurm_collector_success", "0x60", source="nodes"),
            series("slurm_collector_success", "1x60", source="jobs"),
        ],
        "SlurmSilent",
        {"20m": [{"source": "nodes", "says": "Slurm has not answered on its nodes for 15 minutes"}]},
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
            "75m": [{"state": "down", "says": "2 nodes have been down for an hour: no job starts there"}],
        },
    ),
    # Twenty minutes of steps, then none; another run that has ended.
    case(
        [
            series(STEPS, "0+10x20 200x60", instance=BUSY, **TRAINING),
            series(STEPS, "0+10x20 stale", instance=BUSY, run="ended", job_id="1"),
        ],
        "TrainingStalled",
        {
            "30m": [],
            "55m": [{**TRAINING, "says": "run run (job 4711) has made no step for half an hour"}],
        },
    ),
    # Twelve seconds of each minute, and one.
    case(
        [
            series("esm2_training_checkpoint_stall_seconds_sum", "0+12x100", **TRAINING),
            series("esm2_training_checkpoint_stall_seconds_sum", "0+1x100", run="other", job_id="2"),
        ],
        "CheckpointsHoldUpTraining",
        {"80m": [{**TRAINING, "says": "run run waits for checkpoints 20% of time"}]},
    ),
]


def promtool(*arguments: str, folder: Path) -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed: it comes with Debian's package prometheus")
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@BY_SCHEDULER
def test_prometheus_takes_the_rules(scheduler: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules_text(CLUSTERS[scheduler]))
    promtool("check", "rules", "--lint-fatal", "rules.yml", folder=tmp_path)


def test_alerts_come_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules_text(CLUSTERS["slurm"]))
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": CASES}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", "tests.yml", folder=tmp_path)


def test_every_alert_has_been_seen_to_come() -> None:
    seen = {check["alertname"] for case in CASES for check in case["alert_rule_test"] if check["exp_alerts"]}
    assert seen == {rule["alert"] for scheduler in CLUSTERS for rule in rules(scheduler) if "alert" in rule}


TOPIC = "arn:aws:sns:us-east-1:123456789012:alerts"


def test_all_alerts_go_to_the_topic() -> None:
    definition = yaml.safe_load(alert_manager_definition(CLUSTERS["slurm"], TOPIC))
    config = yaml.safe_load(definition["alertmanager_config"])
    assert config == alert_manager_config(CLUSTERS["slurm"], TOPIC)
    (receiver,) = config["receivers"]
    (topic,) = receiver["sns_configs"]
    assert config["route"]["receiver"] == receiver["name"]
    assert (topic["topic_arn"], topic["sigv4"]) == (TOPIC, {"region": "us-east-1"})


def test_alertmanager_takes_its_configuration(tmp_path: Path) -> None:
    if not shutil.which("amtool"):
        pytest.skip("amtool is not installed: it comes with Debian's package prometheus-alertmanager")
    config = tmp_path / "alertmanager.yml"
    config.write_text(yaml.safe_dump(alert_manager_config(CLUSTERS["slurm"], TOPIC)))
    done = subprocess.run(["amtool", "check-config", config], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
