"""A real Prometheus, with the configuration of the nodes, beside exporters and a training on this machine."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from config.reading.loader import load_eks_cluster
from config.resource_names import job_namespaces
from manifests.training_collector import agent_config
from tests.lifecycle.https_server import body, served
from tests.monitoring import exporters

UNITS = Path(__file__).parents[2] / "lifecycle/slurm/units"
PROMETHEUS = "prometheus"
NODE_EXPORTER = "prometheus-node-exporter"
"""Debian's names of the programs, and of the packages that have them."""
SECONDS_TO_START = 60
SCRAPE_EVERY = "1s"
LABELS = {
    "instance": exporters.GPU_NODES[0],
    "group": "workers",
    "role": "worker",
    "instance_type": "ml.p5.48xlarge",
}


def lacking() -> list[str]:
    """Packages that are not installed here."""
    return [name for name in (PROMETHEUS, NODE_EXPORTER) if not shutil.which(name)]


class Prometheus:
    """Its HTTP interface."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, expression: str, at: float) -> list[dict[str, Any]]:
        """Samples: ``metric``, their labels, and ``value``, time and text of a number."""
        parameters = urlencode({"query": expression, "time": f"{at:.3f}"})
        return list(self.get(f"/api/v1/query?{parameters}")["data"]["result"])

    def get(self, path: str) -> Any:
        with urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def running(
    folder: Path, training_port: int, slurm: Callable[[], str], *, pods: bool = True
) -> Iterator[Prometheus]:
    """Run Prometheus, which scrapes a node, GPUs, Kueue, and the training at that port if there is one.

    The node's exporter is the real one, to which the collectors' texts are added as on a node. With ``pods``
    the training is scraped a second time, as EKS's collector does.
    """
    started = time.monotonic()
    text_files = folder / "textfile"
    text_files.mkdir()
    (text_files / "slurm.prom").write_text(slurm())
    send_by_efa(folder, 0)
    with ExitStack() as stack:
        node = _node_exporter(stack, text_files)
        gpus = stack.enter_context(_moving(exporters.gpus, started))
        kueue = stack.enter_context(_moving(exporters.kueue, started))
        # No Lustre is mounted here: a second node has one.
        lustre = stack.enter_context(served(body(exporters.lustre().encode())))
        lists = {
            "nodes": [
                _target(node, LABELS),
                _target(lustre, {**LABELS, "instance": exporters.GPU_NODES[1]}),
            ],
            "gpus": [_target(gpus, LABELS)],
            "jobs": [_target(f"http://127.0.0.1:{training_port}", LABELS)],
            "pods": [_pod(training_port, "esm2", name) for name in ("metrics", "agent") if pods],
        }
        for name, targets in lists.items():
            (folder / f"{name}.json").write_text(json.dumps(targets))
        port = free_port()
        config = _config(folder, kueue, port)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        _start(
            stack,
            folder / "prometheus.log",
            PROMETHEUS,
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        prometheus = Prometheus(port)
        wait_until(lambda: _answers(f"{prometheus.url}/-/ready"), "Prometheus is not ready")
        yield prometheus


def send_by_efa(folder: Path, seconds: float) -> None:
    """Have the node's adapters count as much as they do so long after the start."""
    text = exporters.efa(folder / "infiniband", seconds)
    partial = folder / "efa.prom"
    partial.write_text(text)
    partial.replace(folder / "textfile/efa.prom")


def free_port() -> int:
    with socket.socket() as holder:
        holder.bind(("", 0))
        return int(holder.getsockname()[1])


def wait_until(done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while not done():
        assert time.monotonic() < deadline, f"{what} after {SECONDS_TO_START} s"
        time.sleep(0.1)


def _config(folder: Path, kueue: str, port: int) -> dict[str, Any]:
    """The nodes' own, with lists from the folder, more often, and sent nowhere; and Kueue's metrics."""
    text = (UNITS / "prometheus.yml").read_text().replace("/var/lib/discover-nodes", str(folder))
    values = {
        "@CLUSTER@": '"esm2"',
        "@HOST_NAME@": '"head"',
        "@REGION@": "us-east-1",
        "@URL@": "x",
        "@SLURM@": "",
    }
    for mark, value in values.items():
        text = text.replace(mark, value)
    config: dict[str, Any] = yaml.safe_load(text)
    del config["remote_write"]
    config["global"] |= {"scrape_interval": SCRAPE_EVERY, "scrape_timeout": SCRAPE_EVERY}
    for job in config["scrape_configs"]:
        for static in job.get("static_configs", []):
            static["targets"] = [f"127.0.0.1:{port}"]
    config["scrape_configs"].append({"job_name": "kueue", "static_configs": [_target(kueue, {})]})
    config["scrape_configs"].append(_of_pods(folder))
    return config


def _of_pods(folder: Path) -> dict[str, Any]:
    """The job of EKS's collector, with a file in place of Kubernetes, which Debian's build knows not."""
    cluster = load_eks_cluster(Path("clusters/eks.yaml"))
    (job,) = agent_config(cluster, remote_write_url="https://x")["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [
        {"role": "pod", "namespaces": {"names": job_namespaces(cluster)}}
    ]
    return {**job, "job_name": "pods", "file_sd_configs": [{"files": [f"{folder}/pods.json"]}]}


def _pod(port: int, name: str, port_name: str) -> dict[str, Any]:
    """Return Kubernetes' labels of a port of a training pod."""
    found = {
        "namespace": "hyperpod-training",
        "pod_name": f"{exporters.JOB_ID}-pods-0",
        "pod_node_name": "hyperpod-i-1",
        "pod_phase": "Running",
        "pod_label_app_kubernetes_io_name": name,
        "pod_container_port_name": port_name,
    }
    labels = {f"__meta_kubernetes_{key}": value for key, value in found.items()}
    return _target(f"http://127.0.0.1:{port}", labels)


def _node_exporter(stack: ExitStack, text_files: Path) -> str:
    """Start it with its unit's command line, and return its address."""
    unit = (UNITS / "node-exporter.service").read_text()
    words = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", unit, re.MULTILINE)
    assert words
    listen = f"127.0.0.1:{free_port()}"
    command = words[1].replace("\\\n", " ").replace("$$", "$").replace("@LISTEN@", listen)
    command = command.replace("/var/lib/node_exporter/textfile", str(text_files))
    _start(stack, text_files.parent / "node_exporter.log", NODE_EXPORTER, *command.split()[1:])
    url = f"http://{listen}"
    wait_until(lambda: _answers(f"{url}/metrics"), "node_exporter does not answer")
    return url


def _moving(text: Callable[[float], str], started: float) -> Any:
    """Served, as it is so long after the start."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        body(text(time.monotonic() - started).encode())(request)

    return served(answer)


def _target(url: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"targets": [url.removeprefix("http://")], "labels": labels}


def _start(stack: ExitStack, log: Path, *command: str) -> None:
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=10):
            return True
    except OSError:
        return False
