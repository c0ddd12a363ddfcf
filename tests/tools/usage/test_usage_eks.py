"""make usage TARGET=eks: the bill of pods that still exist, read by the real kubectl."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.json_documents import RunJson
from tests.tools.kubernetes_api import Objects
from tools.usage import __main__ as command

TEAM = "hyperpod-ns-biology"
WHOLE_NODE = {"nvidia.com/gpu": "8", "cpu": "190"}


def add_pod(
    objects: Objects,
    name: str,
    limits: dict[str, str],
    *,
    labels: dict[str, str] | None = None,
    start: str = "2026-11-02T10:00:00Z",
    end: str | None = "2026-11-02T11:00:00Z",
    phase: str = "Succeeded",
    namespace: str = TEAM,
    node: str = "hyperpod-i-0123",
) -> None:
    states = [{"state": {"terminated": {"finishedAt": end, "exitCode": 0}}}] if end else []
    objects.add(
        "pods",
        namespace,
        name,
        metadata={"labels": labels or {}},
        spec={"nodeName": node, "containers": [{"resources": {"limits": limits}}]},
        status={"phase": phase, "startTime": start, "containerStatuses": states},
    )


def test_hours_of_pods(server: tuple[Objects, Path], run_json: RunJson) -> None:
    objects, kubeconfig = server
    group = {"sagemaker.amazonaws.com/instance-group-name": "p5"}
    objects.add("nodes", "", "hyperpod-i-0123", metadata={"labels": group})
    of_job = {"esm2/job": "train-8m", "esm2/run": "8m", "kueue.x-k8s.io/queue-name": "biology"}
    add_pod(objects, "train-8m-0", WHOLE_NODE, labels=of_job)
    # A restarted pod of the same job, clipped by the end of the period.
    add_pod(
        objects,
        "train-8m-1",
        WHOLE_NODE,
        labels=of_job,
        start="2026-11-02T23:30:00Z",
        end="2026-11-03T01:00:00Z",
    )
    add_pod(objects, "evicted", {"nvidia.com/gpu": "1"}, end=None, phase="Failed")
    add_pod(objects, "quarter", {"nvidia.com/gpu": "2", "cpu": "1500m"})
    add_pod(objects, "slice", {"nvidia.com/mig-1g.20gb": "1", "cpu": "1"})
    add_pod(objects, "running", {"nvidia.com/gpu": "8"}, end=None, phase="Running")
    add_pod(objects, "agent", {"cpu": "1"}, namespace="kube-system")

    dates = ["--since", "2026-11-02", "--until", "2026-11-03"]
    place = ["--cluster", "clusters/eks-p5.yaml", "--kubeconfig", str(kubeconfig)]
    printed = run_json(command.main, *place, *dates)["result"]

    jobs: dict[str, dict[str, Any]] = {job["job"]: job for job in printed["jobs"]}
    assert {name: (job["node_hours"], job["gpu_hours"]) for name, job in jobs.items()} == {
        f"{TEAM}/train-8m": (1.5, 12.0),
        f"{TEAM}/quarter": (0.25, 2.0),
        f"{TEAM}/slice": (1 / 32, 1 / 4),
        f"{TEAM}/running": (14.0, 112.0),
    }
    train = jobs[f"{TEAM}/train-8m"]
    assert (train["account"], train["partition"], train["name"]) == (TEAM, "biology", "8m")
    assert train["instance_type"] == "ml.p5.48xlarge"
    assert train["usd"] > 0
    assert printed["without_end"] == [f"{TEAM}/evicted"]
    assert "Kubernetes has only the pods that still exist" in " ".join(printed["notes"])


def test_a_thousand_nodes_take_two_screens(
    server: tuple[Objects, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """kubectl reads nodes and pods page by page."""
    objects, kubeconfig = server
    group = {"sagemaker.amazonaws.com/instance-group-name": "p5"}
    for number in range(1_000):
        node = f"hyperpod-i-{number}"
        objects.add("nodes", "", node, metadata={"labels": group})
        team = f"team-{number % 500}"
        add_pod(objects, f"train-{number}", WHOLE_NODE, namespace=team, node=node)
    table = tmp_path / "usage.csv"
    place = ["--cluster", "clusters/eks-p5.yaml", "--kubeconfig", str(kubeconfig)]
    dates = ["--since", "2026-11-02", "--until", "2026-11-03", "--csv", str(table)]
    monkeypatch.setattr(sys, "argv", ["usage", *place, *dates])
    assert command.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 100
    assert any(line.split()[:3] == ["all", "jobs", "1000"] for line in lines)
    assert not any("whose instance type is not known" in line for line in lines), (
        "all nodes are read"
    )
    assert any(line.startswith("486 others") for line in lines)
    assert len(table.read_text().splitlines()) == 1_001
