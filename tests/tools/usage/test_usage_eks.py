"""make usage TARGET=eks: the bill of pods that still exist, read by the real kubectl."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.json_documents import RunJson
from tests.tools.kubernetes_api import Objects, api_server
from tools.usage import __main__ as command

TEAM = "hyperpod-ns-biology"
WHOLE_NODE = {"nvidia.com/gpu": "8", "cpu": "190"}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Objects, Path]]:
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "kubectl"))
    with api_server(tmp_path) as found:
        yield found


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
) -> None:
    states = [{"state": {"terminated": {"finishedAt": end, "exitCode": 0}}}] if end else []
    objects.add(
        "pods",
        namespace,
        name,
        metadata={"labels": labels or {}},
        spec={"nodeName": "hyperpod-i-0123", "containers": [{"resources": {"limits": limits}}]},
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
    add_pod(objects, "running", {"nvidia.com/gpu": "8"}, end=None, phase="Running")
    add_pod(objects, "agent", {"cpu": "1"}, namespace="kube-system")

    dates = ["--since", "2026-11-02", "--until", "2026-11-03"]
    place = ["--cluster", "clusters/eks-p5.yaml", "--kubeconfig", str(kubeconfig)]
    printed = run_json(command.main, *place, *dates)["result"]

    jobs: dict[str, dict[str, Any]] = {job["job"]: job for job in printed["jobs"]}
    assert {name: (job["node_hours"], job["gpu_hours"]) for name, job in jobs.items()} == {
        f"{TEAM}/train-8m": (1.5, 12.0),
        f"{TEAM}/quarter": (0.25, 2.0),
        f"{TEAM}/running": (14.0, 112.0),
    }
    train = jobs[f"{TEAM}/train-8m"]
    assert (train["account"], train["partition"], train["name"]) == (TEAM, "biology", "8m")
    assert train["instance_type"] == "ml.p5.48xlarge"
    assert train["usd"] > 0
    assert printed["without_end"] == [f"{TEAM}/evicted"]
    assert "Kubernetes has only the pods that still exist" in " ".join(printed["notes"])
