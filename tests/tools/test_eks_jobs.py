"""Submitting, status, tail, cancel and fetch with TARGET=eks: the real kubectl, a stand-in of its server."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools.eks_jobs_made import CLUSTERS, IMAGE, RUN
from tests.tools.kubernetes_api import Objects, api_server
from tools import eks_jobs, eks_submit

SPACE = "hyperpod-training"
KINDS = {"hyperpod": "hyperpodpytorchjobs", "kubeflow": "pytorchjobs"}
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Objects, Path]]:
    # kubectl keeps what a server can do by its address.
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "kubectl"))
    with api_server(tmp_path) as (objects, kubeconfig):
        yield objects, kubeconfig


@pytest.fixture
def objects(server: tuple[Objects, Path]) -> Objects:
    """A cluster as it is deployed: namespace, claim."""
    found, _ = server
    found.add("namespaces", "", SPACE)
    found.add("persistentvolumeclaims", SPACE, "fsx", status={"phase": "Bound"})
    return found


@pytest.fixture
def run(
    server: tuple[Objects, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Run:
    def command(tool: Any, *arguments: str, cluster: str | Path = "eks") -> tuple[int, str]:
        path = cluster if isinstance(cluster, Path) else CLUSTERS / f"{cluster}.yaml"
        options = ["--cluster", str(path), "--kubeconfig", str(server[1])]
        monkeypatch.setattr(sys, "argv", ["tool", *arguments, *options])
        status = tool.main()
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return command


def submit(run: Run, *arguments: str, **options: Any) -> str:
    """Returns the job's name."""
    stage = arguments[0] if arguments else "train"
    config = [] if stage == "bandwidth" else ["--config", str(RUN)]
    status, said = run(eks_submit, stage, *config, "--image", IMAGE, *arguments[1:], **options)
    assert status == 0, said
    return dict(line.split(maxsplit=1) for line in said.splitlines())["job"]


@pytest.fixture(params=["hyperpod", "kubeflow"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A cluster file for each operator."""
    content = yaml.safe_load((CLUSTERS / "eks.yaml").read_text()) | {"training_operator": request.param}
    path = tmp_path / f"{request.param}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize("stage", ["data", "train", "evaluate", "bandwidth"])
def test_a_stage_becomes_a_job_with_its_run_file(
    objects: Objects, run: Run, cluster: Path, stage: str
) -> None:
    name = submit(run, stage, cluster=cluster)
    [job] = objects.of(KINDS[cluster.stem])
    [run_file] = objects.of("configmaps")
    assert job["metadata"]["name"] == name and objects.asked[0].startswith("try ")
    [owner] = run_file["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": name,
        "uid": job["metadata"]["uid"],
    }
    if stage != "bandwidth":
        assert run_file["data"]["config.yaml"] == RUN.read_text()


def test_what_is_printed_is_as_on_slurm(objects: Objects, run: Run) -> None:
    _, said = run(eks_submit, "train", "--config", str(RUN), "--image", IMAGE, "parallel.mode=ddp")
    names = [line.split()[0] for line in said.splitlines()]
    assert names == ["job", "pods", "metrics", "report", "next"]
    assert f"/fsx/{SPACE}/esm2/runs/esm2_8m_sample/metrics.jsonl" in said
    _, said = run(eks_submit, "embed", "--config", str(RUN), "--image", IMAGE)
    assert f"\nresults  /fsx/{SPACE}/esm2/runs/esm2_8m_sample/embeddings.parquet\nnext" in said


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda objects: objects.kept.clear(), f"namespace {SPACE} is not there; it comes with the cluster"),
        (
            lambda objects: objects.kept.pop(("persistentvolumeclaims", SPACE, "fsx")),
            "claim fsx: not there; pods get the Lustre file system by it",
        ),
        (
            lambda objects: objects.add("persistentvolumeclaims", SPACE, "fsx", status={"phase": "Pending"}),
            "claim fsx: Pending",
        ),
        (
            lambda objects: objects.missing_groups.add("sagemaker.amazonaws.com"),
            "HyperPod's training operator is not installed",
        ),
        (
            lambda objects: objects.refused.update(hyperpodpytorchjobs="exceeded quota: pods"),
            "Kubernetes refuses the job: .*exceeded quota: pods.*kubernetes.access says who",
        ),
    ],
)
def test_what_the_cluster_lacks_is_told(
    objects: Objects, run: Run, change: Callable[[Objects], Any], problem: str
) -> None:
    change(objects)
    with pytest.raises(ValueError, match=problem):
        submit(run)
    assert not objects.of("configmaps") and not objects.of("hyperpodpytorchjobs")


def test_an_operator_that_does_not_know_a_field_makes_no_job(objects: Objects, run: Run) -> None:
    """Kubernetes drops what a kind has not, without a word."""
    objects.unknown.add("elasticPolicy")
    with pytest.raises(ValueError, match=r"HyperPodPyTorchJob has no spec\.elasticPolicy there"):
        submit(run, "train", "--nodes", "1-2")
    assert not objects.of("hyperpodpytorchjobs")
    submit(run, "train", "--nodes", "2")


def test_nothing_stays_of_a_job_whose_run_file_is_refused(objects: Objects, run: Run) -> None:
    objects.refused["configmaps"] = "exceeded quota: configmaps"
    with pytest.raises(ValueError, match="refuses the run file, and the job is gone again"):
        submit(run)
    assert not objects.of("hyperpodpytorchjobs")


def test_a_run_is_trained_once_at_a_time(objects: Objects, run: Run) -> None:
    first = submit(run)
    with pytest.raises(ValueError, match=f"run esm2-8m-sample is being trained by job {first}"):
        submit(run)
    submit(run, "evaluate")
    condition = {"type": "Completed", "status": "True"}
    objects.kept["hyperpodpytorchjobs", SPACE, first]["status"] = {"conditions": [condition]}
    submit(run)


def test_a_team_needs_its_queue(objects: Objects, run: Run) -> None:
    space = "hyperpod-ns-proteins"
    objects.add("namespaces", "", space)
    objects.add("persistentvolumeclaims", space, "fsx", status={"phase": "Bound"})
    missing = f"queue {space}-localqueue is not there.*\nservice account training is not in {space}"
    with pytest.raises(ValueError, match=missing):
        submit(run, "train", "--team", "proteins", cluster="eks-p5")
    objects.add("localqueues", space, f"{space}-localqueue")
    objects.add("serviceaccounts", space, "training")
    name = submit(run, "train", "--team", "proteins", "--priority", "urgent", cluster="eks-p5")
    [job] = objects.of("hyperpodpytorchjobs")
    assert job["metadata"]["namespace"] == space
    assert '"serviceAccountName": "training"' in json.dumps(job), "whose pods may log to the cluster's MLflow"
    # Why it waits there, is Kueue's to say.
    for uid, more in ((job["metadata"]["uid"], 16), ("of another job", 8)):
        said = f"insufficient unused quota for nvidia.com/gpu, {more} more needed"
        objects.add(
            "workloads",
            space,
            f"workload-{more}",
            metadata={"ownerReferences": [{"uid": uid}]},
            status={"conditions": [{"type": "QuotaReserved", "status": "False", "message": said}]},
        )
    _, status = run(eks_jobs, "status", "--team", "proteins", cluster="eks-p5")
    assert f"job {name}" in status and "no quota: insufficient unused quota for nvidia.com/gpu, 16" in status
    assert "8 more needed" not in status


def add_pod(objects: Objects, job: str, log: str, *, number: int = 0, phase: str = "Running") -> str:
    name = f"{job}-pods-{number}"
    objects.add(
        "pods",
        SPACE,
        name,
        metadata={"labels": {"esm2/job": job}},
        spec={"nodeName": "hyperpod-i-0123", "containers": [{"name": "train", "image": IMAGE}]},
        status={"phase": phase},
    )
    objects.logs[name] = log
    return name


def test_status_lists_jobs_and_how_far_they_are(objects: Objects, run: Run, cluster: Path) -> None:
    name = submit(run, cluster=cluster)
    job = objects.kept[KINDS[cluster.stem], SPACE, name]
    job["status"] = {
        "conditions": [
            {"type": "Created", "status": "True"},
            {"type": "Running", "status": "True", "message": "all pods run"},
        ]
    }
    add_pod(objects, name, "step 10/200: loss 2.900\nstep 20/200: loss 2.800\n")
    status, said = run(eks_jobs, "status", cluster=cluster)
    assert status == 0
    header, row = said.splitlines()[:2]
    assert header.split() == ["JOB", "STAGE", "RUN", "STATE", "AGE"]
    assert row.split()[:4] == [name, "train", "esm2-8m-sample", "Running"]
    assert "step 20/200: loss 2.800" in said and "hyperpod-i-0123" in said and "all pods run" in said


def test_status_says_what_is_wrong_with_pods(objects: Objects, run: Run) -> None:
    """In Kubernetes' own words, and in those of what has failed: also of a check that names its node."""
    name = submit(run)
    waits, fails, pulls = (add_pod(objects, name, "", number=number, phase="Pending") for number in range(3))
    said_last = "Traceback\nerror: node hyperpod-i-0123: nvidia-smi shows 7"
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": said_last}}
    again = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
    image = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image: not found"}}
    no_node = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    begun = {"name": "train", "state": {"waiting": {"reason": "PodInitializing"}}}
    found = {
        waits: {"conditions": [no_node]},
        fails: {
            "initContainerStatuses": [
                {"name": "check", "restartCount": 3, "state": again, "lastState": ended}
            ],
            "containerStatuses": [begun],
        },
        pulls: {"initContainerStatuses": [{"name": "check", "state": image}]},
    }
    for pod, status in found.items():
        objects.kept["pods", SPACE, pod]["status"] |= status
    _, printed = run(eks_jobs, "status")
    lines = [line.strip() for line in printed.splitlines()]
    problems = [lines[lines.index(pod) + 1] for pod in lines if pod.startswith("pod ")]
    assert problems == [
        "no node: 0/3 nodes are available",
        "check ended with 1, started again 3 time(s): error: node hyperpod-i-0123: nvidia-smi shows 7",
        "check waits: Back-off pulling image: not found",
    ]


def test_tail_shows_logs_until_the_job_ends(objects: Objects, run: Run) -> None:
    name = submit(run)
    add_pod(objects, name, "step 10/200: loss 2.900\n")
    add_pod(objects, name, "advances: training\n", number=1)
    objects.kept["hyperpodpytorchjobs", SPACE, name]["status"] = {
        "conditions": [{"type": "Completed", "status": "True"}]
    }
    status, said = run(eks_jobs, "tail")
    assert status == 0 and "step 10/200: loss 2.900" in said and "advances: training" in said
    assert said.endswith(f"job {name}: Completed\n")


def test_tail_says_why_a_job_does_not_begin_and_shows_what_comes_before_training(
    objects: Objects, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = submit(run)
    pod = add_pod(objects, name, "preparing data/sample\n", phase="Pending")
    status = objects.kept["pods", SPACE, pod]["status"]
    status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]

    def pause(seconds: float) -> None:
        if status.pop("conditions", None):
            running = {"name": "data", "state": {"running": {}}}
            status["initContainerStatuses"] = [running]
            return
        condition = {"type": "Completed", "status": "True"}
        objects.kept["hyperpodpytorchjobs", SPACE, name]["status"] = {"conditions": [condition]}

    monkeypatch.setattr(eks_jobs, "pause", pause)
    _, said = run(eks_jobs, "tail", name)
    first, why, *rest = said.splitlines()
    assert first == "the job has not begun: Waiting"
    assert why == f"  {pod}  no node: 0/3 nodes are available"
    assert any(line.endswith("preparing data/sample") for line in rest)


def test_tail_goes_on_when_pods_are_replaced(
    objects: Objects, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = submit(run)
    add_pod(objects, name, "step 10/200: loss 2.900\n")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            condition = {"type": "Completed", "status": "True"}
            objects.kept["hyperpodpytorchjobs", SPACE, name]["status"] = {"conditions": [condition]}

    monkeypatch.setattr(eks_jobs, "pause", pause)
    status, said = run(eks_jobs, "tail", name)
    logs = [asked for asked in objects.asked if asked.startswith("log ")]
    assert status == 0 and said.count("step 10/200") == 1
    assert len(logs) == 3 and logs[0] == f"log {name}-pods-0"
    assert all(asked.startswith(f"{logs[0]} 20") for asked in logs[1:])


def test_cancel_deletes_the_job_and_lets_its_pods_end(objects: Objects, run: Run, cluster: Path) -> None:
    name = submit(run, cluster=cluster)
    status, said = run(eks_jobs, "cancel", name, cluster=cluster)
    assert status == 0 and said.startswith(f"job {name} is asked to save and to end, within 180 s")
    assert objects.deleted == [f"{KINDS[cluster.stem]}/{name}"]


def test_cancel_wants_to_know_which(objects: Objects, run: Run) -> None:
    with pytest.raises(ValueError, match="cancel: name the job"):
        run(eks_jobs, "cancel")


@pytest.mark.parametrize("what", ["tail", "cancel", "fetch"])
def test_a_job_that_nobody_submitted(objects: Objects, run: Run, what: str) -> None:
    with pytest.raises(ValueError, match=f"no job train-x is in namespace {SPACE}"):
        run(eks_jobs, what, "train-x")


def test_fetch_brings_results_through_a_pod(
    objects: Objects, run: Run, tmp_path: Path, cluster: Path
) -> None:
    name = submit(run, cluster=cluster)
    objects.shared = tmp_path / "fsx"
    run_dir = objects.shared / SPACE / "esm2/runs/esm2_8m_sample"
    (run_dir / "model").mkdir(parents=True)
    (run_dir / "report.html").write_text("<svg>")
    (run_dir / "model" / "model.safetensors").write_bytes(weights := os.urandom(300_000))
    (run_dir / "checkpoints").mkdir()
    status, said = run(eks_jobs, "fetch", name, "--to", str(tmp_path / "runs"), cluster=cluster)
    fetched = tmp_path / "runs/esm2_8m_sample"
    assert status == 0 and str(fetched / "report.html") in said
    assert (fetched / "report.html").read_text() == "<svg>"
    assert (fetched / "model/model.safetensors").read_bytes() == weights
    assert not (fetched / "checkpoints").exists()
    assert [made for made in objects.deleted if made.startswith("pods/fetch-")] and not objects.of("pods")


def test_files_that_grow_meanwhile_are_fetched(
    objects: Objects, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tar ends with status 1 then."""
    submit(run)
    objects.shared = tmp_path / "fsx"
    run_dir = objects.shared / SPACE / "esm2/runs/esm2_8m_sample"
    run_dir.mkdir(parents=True)
    (run_dir / "metrics.jsonl").write_text("{}\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "tar").write_text(f'#!/bin/bash\n{shutil.which("tar")} "$@"\nexit 1\n')
    (programs / "tar").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert run(eks_jobs, "fetch", "--to", str(tmp_path / "runs"))[0] == 0
    assert (tmp_path / "runs/esm2_8m_sample/metrics.jsonl").read_text() == "{}\n"


def test_a_run_without_results_says_so(objects: Objects, run: Run, tmp_path: Path) -> None:
    submit(run)
    objects.shared = tmp_path / "fsx"
    with pytest.raises(ValueError, match="runs/esm2_8m_sample is not there yet; make tail"):
        run(eks_jobs, "fetch")
    assert not objects.of("pods")


def test_a_server_that_is_not_reached(run: Run, server: tuple[Objects, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    content = json.loads(server[1].read_text())
    content["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{free}"
    server[1].write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"does not answer \(.*refused.*reached from the VPC"):
        run(eks_jobs, "status")
