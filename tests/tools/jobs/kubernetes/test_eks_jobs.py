"""Status, tail, cancel and fetch with TARGET=eks."""

from __future__ import annotations

import copy
import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from tests.tools.jobs.kubernetes.submissions import KINDS, SPACE, Run, add_pod, submitted
from tests.tools.json_documents import RunJson
from tests.tools.kubernetes_api import Objects
from tools.jobs import __main__ as command
from tools.jobs.kubernetes import watch as eks_jobs

RECORDED = Path(__file__).parents[1] / "recorded/kubernetes_objects.json"
"""Objects of a job that commit a69db5705423 submitted."""


def test_status_lists_jobs_and_how_far_they_are(objects: Objects, run: Run, cluster: Path) -> None:
    name = submitted(objects, run, cluster)
    job = objects.kept[KINDS[cluster.stem], SPACE, name]
    job["status"] = {
        "conditions": [
            {"type": "Created", "status": "True"},
            {"type": "Running", "status": "True", "message": "all pods run"},
        ]
    }
    add_pod(objects, name, "step 10/200: loss 2.900\nstep 20/200: loss 2.800\n")
    status, said = run("status", cluster=cluster)
    assert status == 0
    header, row = said.splitlines()[:2]
    assert header.split() == ["JOB", "STAGE", "RUN", "STATE", "AGE"]
    assert row.split()[:4] == [name, "train", "esm2-8m-sample", "Running"]
    assert (
        "step 20/200: loss 2.800" in said and "hyperpod-i-0123" in said and "all pods run" in said
    )


def test_status_and_end_of_a_job_as_json(
    objects: Objects, run: Run, server: tuple[Objects, Path], run_json: RunJson
) -> None:
    name = submitted(objects, run)
    add_pod(objects, name, "step 20/200: loss 2.800\n")
    options = ("--cluster", "clusters/eks.yaml", "--kubeconfig", str(server[1]))
    result = run_json(command.main, "status", *options)["result"]
    [job] = result["jobs"]
    assert (job["job"], job["name"], job["nodes"]) == (name, "train", None)
    [found] = result["runs"]
    assert found["run"] == "esm2-8m-sample" and "step 20/200" in found["log"]
    ended = run_json(command.main, "cancel", name, *options)["result"]
    assert f"job {name} saves and ends" in ended["lines"][0]
    unknown = run_json(command.main, "tail", "train-x", *options)
    assert unknown["exit_status"] == 2 and "no job train-x is in namespace" in unknown["error"]


def test_status_says_what_is_wrong_with_pods(objects: Objects, run: Run) -> None:
    """In Kubernetes' own words, and in those of what has failed: also of a check that names its node."""
    name = submitted(objects, run)
    waits, fails, pulls = (
        add_pod(objects, name, "", number=number, phase="Pending") for number in range(3)
    )
    said_last = "Traceback\nerror: node hyperpod-i-0123: nvidia-smi shows 7"
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": said_last}}
    again = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}
    image = {
        "waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image: not found"}
    }
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
    _, printed = run("status")
    lines = [line.strip() for line in printed.splitlines()]
    problems = [lines[lines.index(pod) + 1] for pod in lines if pod.startswith("pod ")]
    assert problems == [
        "no node: 0/3 nodes are available",
        "check ended with 1, started again 3 time(s): error: node hyperpod-i-0123: nvidia-smi shows 7",
        "check waits: Back-off pulling image: not found",
    ]


def test_tail_shows_logs_until_the_job_ends(objects: Objects, run: Run) -> None:
    name = submitted(objects, run)
    add_pod(objects, name, "step 10/200: loss 2.900\n")
    add_pod(objects, name, "advances: training\n", number=1)
    objects.kept["hyperpodpytorchjobs", SPACE, name]["status"] = {
        "conditions": [{"type": "Completed", "status": "True"}]
    }
    status, said = run("tail")
    assert status == 0 and "step 10/200: loss 2.900" in said and "advances: training" in said
    assert said.endswith(f"job {name}: Completed\n")


def test_tail_says_why_a_job_does_not_begin_and_shows_what_comes_before_training(
    objects: Objects, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = submitted(objects, run)
    pod = add_pod(objects, name, "preparing data/sample\n", phase="Pending")
    status = objects.kept["pods", SPACE, pod]["status"]
    status["conditions"] = [
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    ]

    def pause(seconds: float) -> None:
        if status.pop("conditions", None):
            running = {"name": "data", "state": {"running": {}}}
            status["initContainerStatuses"] = [running]
            return
        condition = {"type": "Completed", "status": "True"}
        objects.kept["hyperpodpytorchjobs", SPACE, name]["status"] = {"conditions": [condition]}

    monkeypatch.setattr(eks_jobs, "pause", pause)
    _, said = run("tail", name)
    first, why, *rest = said.splitlines()
    assert first == "the job has not begun: Waiting"
    assert why == f"  {pod}  no node: 0/3 nodes are available"
    assert any(line.endswith("preparing data/sample") for line in rest)


def test_tail_continues_when_pods_are_replaced(
    objects: Objects, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = submitted(objects, run)
    add_pod(objects, name, "step 10/200: loss 2.900\n")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            condition = {"type": "Completed", "status": "True"}
            objects.kept["hyperpodpytorchjobs", SPACE, name]["status"] = {"conditions": [condition]}

    monkeypatch.setattr(eks_jobs, "pause", pause)
    status, said = run("tail", name)
    logs = [asked for asked in objects.asked if asked.startswith("log ")]
    assert status == 0 and said.count("step 10/200") == 1
    assert len(logs) == 3 and logs[0] == f"log {name}-pods-0"
    assert all(asked.startswith(f"{logs[0]} 20") for asked in logs[1:])


NUM_PODS = 512


def _many_pods(objects: Objects, name: str) -> None:
    """Pods of a large job: number 300 has failed, and 301 to 320 wait for a node."""
    for number in range(NUM_PODS):
        add_pod(objects, name, f"this is pod {number}\n", number=number)
    ended = {"terminated": {"exitCode": 1, "message": "error: node i-1: 7 GPUs"}}
    no_node = {"type": "PodScheduled", "status": "False", "message": "0/512 nodes are available"}
    objects.kept["pods", SPACE, f"{name}-pods-300"]["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "train", "state": ended}],
    }
    for number in range(301, 321):
        objects.kept["pods", SPACE, f"{name}-pods-{number}"]["status"] = {
            "phase": "Pending",
            "conditions": [no_node],
        }


def test_many_pods_are_counts_after_their_problems(objects: Objects, run: Run) -> None:
    name = submitted(objects, run)
    _many_pods(objects, name)
    _, said = run("status")
    lines = [line.strip() for line in said.splitlines()]
    assert lines[-4:] == [
        f"problem  {name}-pods-301 on hyperpod-i-0123 and 19 more: no node: 0/512 nodes are available",
        f"problem  {name}-pods-300 on hyperpod-i-0123: train ended with 1: error: node i-1: 7 GPUs",
        "pods     512: 1 Failed, 20 Pending, 491 Running",
        "log      this is pod 0",
    ]
    everything = run("status", "--all")[1]
    assert everything.count(f"{name}-pods-") == NUM_PODS


def test_the_first_pod_of_many_and_failing_ones_are_followed(objects: Objects, run: Run) -> None:
    name = submitted(objects, run)
    _many_pods(objects, name)
    condition = {"type": "Completed", "status": "True"}
    objects.kept["hyperpodpytorchjobs", SPACE, name]["status"] = {"conditions": [condition]}
    _, said = run("tail", name)
    assert "this is pod 0\n" in said and f"[{name}-pods-300] this is pod 300\n" in said
    assert f"[{name}-pods-300] train ended with 1: error: node i-1: 7 GPUs" in said
    assert said.count("this is pod") == 2
    logs = {asked for asked in objects.asked if asked.startswith("log ")}
    assert logs == {f"log {name}-pods-0", f"log {name}-pods-300"}
    with pytest.raises(ValueError, match="has 512 pods, and kubectl follows at most 256"):
        run("tail", name, "--all")


def test_status_lists_the_newest_of_many_jobs(objects: Objects, run: Run) -> None:
    name = submitted(objects, run)
    key = (KINDS["hyperpod"], SPACE, name)
    for number in range(200):
        job = copy.deepcopy(objects.kept[key])
        job["metadata"]["name"] = f"older-{number}"
        objects.kept[KINDS["hyperpod"], SPACE, f"older-{number}"] = job
    _, said = run("status")
    assert "and 176 older jobs: make status TARGET=eks ARGS=--all" in said
    assert len(said.splitlines()) <= 100


def test_cancel_deletes_the_job_and_lets_its_pods_end(
    objects: Objects, run: Run, cluster: Path
) -> None:
    name = submitted(objects, run, cluster)
    status, said = run("cancel", name, cluster=cluster)
    assert status == 0 and said.startswith(f"job {name} saves and ends within 180 s")
    assert objects.deleted == [f"{KINDS[cluster.stem]}/{name}"]


def test_cancel_wants_to_know_which(objects: Objects, run: Run) -> None:
    with pytest.raises(ValueError, match="cancel: name the job"):
        run("cancel")


@pytest.mark.parametrize("what", ["tail", "cancel", "fetch"])
def test_refuses_an_unknown_job(objects: Objects, run: Run, what: str) -> None:
    with pytest.raises(ValueError, match=f"no job train-x is in namespace {SPACE}"):
        run(what, "train-x")


def test_fetch_brings_results_through_a_pod(
    objects: Objects, run: Run, tmp_path: Path, cluster: Path
) -> None:
    name = submitted(objects, run, cluster)
    objects.shared = tmp_path / "fsx"
    run_dir = objects.shared / SPACE / "esm2/runs/esm2_8m_sample"
    (run_dir / "model").mkdir(parents=True)
    (run_dir / "report.html").write_text("<svg>")
    (run_dir / "model" / "model.safetensors").write_bytes(weights := os.urandom(300_000))
    (run_dir / "checkpoints").mkdir()
    status, said = run("fetch", name, "--to", str(tmp_path / "runs"), cluster=cluster)
    fetched = tmp_path / "runs/esm2_8m_sample"
    assert status == 0 and str(fetched / "report.html") in said
    assert (fetched / "report.html").read_text() == "<svg>"
    assert (fetched / "model/model.safetensors").read_bytes() == weights
    assert not (fetched / "checkpoints").exists()
    assert [made for made in objects.deleted if made.startswith("pods/fetch-")] and not objects.of(
        "pods"
    )


def test_files_that_grow_meanwhile_are_fetched(
    objects: Objects, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tar ends with status 1 then."""
    submitted(objects, run)
    objects.shared = tmp_path / "fsx"
    run_dir = objects.shared / SPACE / "esm2/runs/esm2_8m_sample"
    run_dir.mkdir(parents=True)
    (run_dir / "metrics.jsonl").write_text("{}\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "tar").write_text(f'#!/bin/bash\n{shutil.which("tar")} "$@"\nexit 1\n')
    (programs / "tar").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert run("fetch", "--to", str(tmp_path / "runs"))[0] == 0
    assert (tmp_path / "runs/esm2_8m_sample/metrics.jsonl").read_text() == "{}\n"


def test_a_run_without_results_says_so(objects: Objects, run: Run, tmp_path: Path) -> None:
    submitted(objects, run)
    objects.shared = tmp_path / "fsx"
    with pytest.raises(ValueError, match="runs/esm2_8m_sample is not there yet; make tail"):
        run("fetch")
    assert not objects.of("pods")


def test_a_server_that_is_not_reached(
    run: Run, server: tuple[Objects, Path], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    content = json.loads(server[1].read_text())
    content["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{free}"
    (path := tmp_path / "kubeconfig").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"does not answer \(.*refused.*reached only from the VPC"):
        run("status", kubeconfig=path)


def test_a_job_that_an_earlier_version_submitted_is_followed(
    objects: Objects, run: Run, tmp_path: Path
) -> None:
    for each in json.loads(RECORDED.read_text()):
        objects.kept[each["kind"], each["namespace"], each["name"]] = each["object"]
    (name,) = (name for kind, _, name in objects.kept if kind in KINDS.values())
    add_pod(objects, name, "step 3\n", phase="Succeeded")
    objects.kept["hyperpodpytorchjobs", SPACE, name]["status"] = {
        "conditions": [{"type": "Completed", "status": "True"}]
    }
    status, said = run("status")
    assert status == 0 and name in said
    assert "step 3" in run("tail", name)[1]
    objects.shared = tmp_path / "fsx"
    run_dir = objects.shared / SPACE / "esm2/runs/esm2_8m_sample"
    run_dir.mkdir(parents=True)
    (run_dir / "metrics.jsonl").write_text("{}\n")
    assert run("fetch", name, "--to", str(tmp_path / "runs"))[0] == 0
    assert (tmp_path / "runs/esm2_8m_sample/metrics.jsonl").read_text() == "{}\n"
    assert run("cancel", name)[0] == 0
    assert any(name in deleted for deleted in objects.deleted)
