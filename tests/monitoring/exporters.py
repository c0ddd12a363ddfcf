"""Output of exporters: the collectors' and the trainer's own, and recordings of the others."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import generate_latest

from collectors import efa_metrics, slurm_metrics
from workloads.training.tracking.training_metrics import TrainingMetrics

RECORDED = Path(__file__).parent / "recorded"
JOB_ID, RUN = "4711", "run"
GPU_NODES = ("ip-10-0-0-31", "ip-10-0-0-32")
GPUS_PER_NODE = 8
FAULTS = {
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
}
"""Fields that one GPU alone has."""


def lines(name: str) -> list[str]:
    """Return the lines of a recorded file without its comments."""
    text = (RECORDED / name).read_text()
    return [line for line in text.splitlines() if not line.startswith("#")]


def node_exporter_names() -> set[str]:
    return {line.split()[0] for line in lines("node_exporter.txt")}


def gpus(seconds: float = 0) -> str:
    """dcgm-exporter's answer for two nodes, one GPU idle and one with faults, so long after the first."""
    rows = list(csv.reader(lines("dcgm_exporter.csv")))
    text = ""
    for name, kind, value, growth in rows:
        text += f"# TYPE {name} {kind}\n"
        for node in GPU_NODES:
            for gpu in range(GPUS_PER_NODE):
                idle = node == GPU_NODES[1] and gpu == 0
                faulty = node == GPU_NODES[0] and gpu == 3
                number = float(value) + float(growth) * seconds
                if (idle and "UTIL" in name) or (name in FAULTS and not faulty):
                    number = 0.0
                # Of Slurm's job, by HyperPod's prolog, and of the pod, by the kubelet.
                labels = {
                    "gpu": str(gpu),
                    "UUID": f"GPU-{node}-{gpu}",
                    "device": f"nvidia{gpu}",
                    "modelName": "NVIDIA H100 80GB HBM3",
                    "Hostname": node,
                    "hpc_job": JOB_ID,
                    "pod": f"{JOB_ID}-pods-0",
                }
                text += sample(name, labels, number)
    return text


def kueue(seconds: float = 0) -> str:
    text = ""
    for name, _, labels, value, growth in csv.reader(lines("kueue.csv")):
        text += f"{name}{{{labels}}} {float(value) + float(growth) * seconds}\n"
    return text


def efa(folder: Path, seconds: float = 0) -> str:
    """Return the metrics of two adapters, whose counters are the driver's files below the folder."""
    for number, device in enumerate(("rdmap16s27", "rdmap32s27"), start=1):
        counters = folder / device / "ports/1/hw_counters"
        counters.mkdir(parents=True, exist_ok=True)
        for name in lines("efa_counters.txt"):
            (counters / name).write_text(f"{number * 1000 * (1 + seconds):.0f}\n")
        for name in ("board_id", "fw_ver", "hca_type"):
            (folder / device / name).write_text("EFA\n")
    return efa_metrics.metrics(folder)


def slurm() -> str:
    """With commands of Slurm on PATH."""
    return slurm_metrics.collect()


def lustre() -> str:
    """A mounted FSx for Lustre, as node_exporter tells any file system."""
    labels = {"device": "10.0.0.5@tcp:/abcd", "fstype": "lustre", "mountpoint": "/fsx"}
    return sample("node_filesystem_size_bytes", labels, 1.2e12) + sample(
        "node_filesystem_avail_bytes", labels, 3e11
    )


def training() -> str:
    """Return the metrics of a training on GPUs of a known peak, which has logged, saved and evaluated."""
    metrics = TrainingMetrics(
        run=RUN, max_steps=9, processes=16, peak_flops=16e15, num_flops=lambda residues, pairs: 1.0
    )
    metrics.started_at(3, lost_steps=2)
    names = ("loss", "grad_norm", "learning_rate", "epoch", "residues", "seconds", "peak_memory_bytes")
    metrics.logged(dict.fromkeys(names, 1.0))
    metrics.evaluated({"eval_loss": 1.0})
    metrics.saved(3, 1.0)
    return generate_latest(metrics.registry).decode()


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{name}{{{inner}}} {value}\n"


def names_in(exposition: str) -> set[str]:
    """Return the names of the samples as Prometheus reads them."""
    return set(re.findall(r"^([a-zA-Z_:][\w:]*)[{ ]", exposition, re.MULTILINE))
