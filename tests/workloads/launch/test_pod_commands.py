"""Commands of rendered jobs' pods, run on this machine: two pods of one process each, on the sample."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqlm.commands.kinds import prepare as prepare_run
from seqlm.launch.kubernetes_job import config_map, job_manifest
from seqlm.launch.pod_job import AGENT_FOLDER, SAVE_SECONDS, PodJob
from seqlm.runs.run_file import load_config
from seqlm.training.command_line import STOPPED_BY_SIGNAL
from seqlm.training.heartbeat import BEAT_LINES
from tests.job_schemas.validation import pod_templates
from tests.tools.jobs.kubernetes.eks_jobs_made import made, shipped
from tests.workloads.launch.operator_stand_in import post, start, stop, wait_for
from tests.workloads.launch.pods_here import AGENT_PACKAGES, Pod, Pods
from tests.workloads.proteins.finetune.labelled_proteins import NUM_PROTEINS, write_table
from tests.workloads.training.training_runs import free_port, lines, train_here

SECONDS = 600
SMALL = (
    "model.init_from=/fsx/tiny",
    "model.max_residues=126",
    "train.tokens_per_pack=512",
    "train.tokens_per_step=2048",
    "train.max_steps=8",
    "optim.warmup_steps=2",
    "train.save_every_steps=4",
    "train.precision=fp32",
    "train.log_every_steps=1",
    "tracking.mlflow=false",
    # Scoring what is held out takes longer than these steps.
    "data.validation_fraction=0.01",
    "data.test_fraction=0.01",
)


def has_agent() -> bool:
    path = [*sys.path, str(AGENT_PACKAGES)]
    return importlib.util.find_spec("hyperpod_elastic_agent") is not None or any(
        (Path(folder) / "hyperpod_elastic_agent").is_dir() for folder in path
    )


def can_write_agent_folder() -> bool:
    try:
        Path(AGENT_FOLDER).mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(AGENT_FOLDER, os.W_OK)


needs_agent = [
    pytest.mark.skipif(
        not has_agent(),
        reason="HyperPod's agent is not in .venv-hyperpod (make test-all puts it there)",
    ),
    pytest.mark.skipif(
        not can_write_agent_folder(), reason=f"HyperPod's agent writes to {AGENT_FOLDER}"
    ),
]
pytestmark = pytest.mark.long
hyperpod = pytest.param("hyperpod", marks=needs_agent)


@pytest.fixture
def shared(tmp_path: Path, tiny_model: Path) -> Path:
    """Stands for /fsx."""
    folder = tmp_path / "fsx"
    shutil.copytree(tiny_model, folder / "tiny")
    return folder


def job_of(operator: str, stage: str, *overrides: str) -> PodJob:
    return made(*overrides, stage=stage, cluster=shipped(training_operator=operator))


def run(job: PodJob, shared: Path, folder: Path) -> list[Pod]:
    """Let the pods run to their end."""
    manifest = job_manifest(job)
    pods = Pods(manifest, shared, folder)
    with pods.running(config_map(job)["data"]["config.yaml"], job.num_pods) as running:
        if job.operator == "hyperpod":
            drive(running, job)
        for pod in running:
            assert pod.ends(SECONDS) == 0, pod.log
    return running


def drive(pods: list[Pod], job: PodJob) -> None:
    """Act as HyperPod's operator: start, wait for the end, shut down."""
    begin(pods, job)
    finish(pods)
    for pod in pods:
        post(pod.port, "shutdown")


def finish(pods: list[Pod]) -> None:
    try:
        wait_for(
            [pod.port for pod in pods],
            ["completed"],
            seconds=SECONDS,
            alive=lambda: all_alive(pods),
        )
    except TimeoutError as error:
        raise AssertionError(f"{error}\n" + "\n".join(pod.log for pod in pods)) from None


def begin(pods: list[Pod], job: PodJob) -> None:
    wait_until_ready(pods)
    start([pod.port for pod in pods], free_port(), job_manifest(job))


def wait_until_ready(pods: list[Pod]) -> None:
    wait_for([pod.port for pod in pods], ["ready"], seconds=SECONDS, alive=lambda: all_alive(pods))


def all_alive(pods: list[Pod]) -> bool:
    return all(pod.main.poll() is None for pod in pods)


ENDLESS = ("train.max_steps=100000", "train.save_every_steps=20")


def until(pods: list[Pod], reached: Callable[[], bool]) -> None:
    """Wait until a run has reached this step."""
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline and all_alive(pods), "\n".join(pod.log for pod in pods)
        time.sleep(0.1)


def until_saved(pods: list[Pod]) -> None:
    until(pods, lambda: "step 20: checkpoint" in pods[0].log)


def run_folder(job: PodJob, shared: Path) -> Path:
    return Path(job.files.run_dir.replace("/fsx", str(shared), 1))


def events(job: PodJob, shared: Path) -> list[str]:
    """Events of a training, without its checkpoints."""
    found = [line["event"] for line in lines(run_folder(job, shared), "event")]
    return [event for event in found if event != "checkpoint"]


def test_pods_of_kubeflow_continue_from_memory_and_save_before_they_end(
    shared: Path, tmp_path: Path
) -> None:
    """A process dies, then a pod with its node's memory; no checkpoint exists. The other pod stays, and does
    not wait until the network gives up. A deleted job's containers get SIGTERM, to their first process.
    """
    cluster = shipped(training_operator="kubeflow", memory_states={"storage": "nodes"})
    steps = ("train.memory_checkpoint_steps=2", "train.save_every_steps=50000")
    job = made(*SMALL, "train.max_steps=100000", *steps, "parallel.mode=fsdp", cluster=cluster)
    here = Pods(job_manifest(job), shared, tmp_path / "job")
    with here.running(job.files.config, job.num_pods) as pods:
        until(pods, lambda: len(train_losses(job, shared)) >= 6)
        before = train_losses(job, shared)
        [worker] = children(pods[1].main.pid)
        os.kill(worker, signal.SIGKILL)
        until(pods, lambda: has_repeated(job, shared, before, num_resumed=1))
        before = train_losses(job, shared)
        here.replace(pods, 1)
        until(pods, lambda: has_repeated(job, shared, before, num_resumed=2))
        end(pods)
        for pod in pods:
            assert not list(pod.memory.glob("*/step-*")), "the run is saved"
    own, of_peer = (text for text in events(job, shared) if text.startswith("continues from the"))
    # The process may die before the newest state has copies on the other nodes.
    assert re.fullmatch(
        r"continues from the state in memory of step \d+(; copies made again: [12])?", own
    )
    assert "; pieces copied from other nodes: 1" in of_peer
    assert events(job, shared)[-1] == "stopped by SIGTERM"


def train_losses(job: PodJob, shared: Path) -> dict[int, float]:
    """Losses by step, as far as they are logged."""
    run_dir = run_folder(job, shared)
    if not (run_dir / "metrics.jsonl").exists():
        return {}
    return {line["step"]: line["loss"] for line in lines(run_dir, "train")}


def has_repeated(job: PodJob, shared: Path, before: dict[int, float], *, num_resumed: int) -> bool:
    """Whether a run that was resumed so many times has made all steps again, with the same losses."""
    now = train_losses(job, shared)
    if events(job, shared).count("resumed") < num_resumed or max(now, default=0) <= max(before):
        return False
    assert {step: now[step] for step in before} == before
    return True


def end(pods: list[Pod]) -> None:
    """Stop pods as Kubernetes does; they end within the time that it gives."""
    for pod in pods:
        pod.main.send_signal(signal.SIGTERM)
    for pod in pods:
        assert pod.ends(SAVE_SECONDS) == STOPPED_BY_SIGNAL, pod.log
    assert "is saved in" in pods[0].log


@pytest.mark.parametrize("operator", [hyperpod])
def test_hyperpods_operator_continues_with_fewer_pods(
    operator: str, shared: Path, tmp_path: Path
) -> None:
    cluster = shipped(training_operator=operator)
    job = made(*SMALL, *ENDLESS, "parallel.mode=fsdp", cluster=cluster, nodes="1-2")
    manifest = job_manifest(job)
    with Pods(manifest, shared, tmp_path / "job").running(job.files.config, job.num_pods) as pods:
        begin(pods, job)
        until_saved(pods)
        ports = [pod.port for pod in pods]
        stop(ports, manifest["spec"]["elasticPolicy"]["gracefulShutdownTimeoutInSeconds"])
        # Agents are ready again when their processes have ended. Until then, one forgets that it shall end.
        wait_until_ready(pods)
        begin(pods[:1], job)
        post(pods[1].port, "shutdown")
        assert pods[1].ends(SECONDS) == 0, pods[1].log
        until(pods[:1], lambda: "resumed" in events(job, shared))
        end(pods[:1])
        for pod in pods:
            assert matching_lines(job, pod), pod.log
    stopped, resumed, changed, ended = events(job, shared)
    assert (stopped, resumed, ended) == ("stopped by SIGUSR1", "resumed", "stopped by SIGTERM")
    assert changed.startswith("changed: processes: 2, now 1.")


def matching_lines(job: PodJob, pod: Pod) -> list[str]:
    """Lines of what the agent reads that its rule for hangs takes for an advance."""
    [rule] = job_manifest(job)["spec"]["runPolicy"]["logMonitoringConfiguration"]
    [file] = (pod.folder / "logs").glob("*/attempt_0/0/stdout.log")
    return [line for line in file.read_text().splitlines() if re.match(rule["logPattern"], line)]


def test_predictions_of_a_fine_tuned_model_by_two_pods(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubeflow's operator ends the other pods with the first one that is done."""
    write_table(shared / "table.csv")
    task = (
        *("name=tuned", "data.path=data/table", "task.table=/fsx/table.csv", "task.kind=binary"),
        *("task.label_columns=membrane", "task.split.column=fold", "task.split.validation=3"),
        *("task.split.test=4", "lora.lr=1e-2"),
    )
    cluster = shipped(training_operator="kubeflow")
    work_folder = shared / "hyperpod-training/esm2"
    work_folder.mkdir(parents=True)
    (tmp_path / "run.yaml").write_text(made(cluster=cluster).files.config)
    overrides = [override.replace("/fsx", str(shared)) for override in (*SMALL, *task)]
    with monkeypatch.context() as patched:
        patched.chdir(work_folder)
        prepare_run(load_config(tmp_path / "run.yaml", overrides))
        train_here(tmp_path / "run.yaml", *overrides)
    asked = (
        "inference.input=/fsx/table.csv",
        "inference.part_residues=2000",
        "inference.long_proteins=crop",
    )
    job = made(*SMALL, *task, *asked, stage="predict", cluster=cluster, nodes="2")
    pods = run(job, shared, tmp_path / "predict")
    for pod in pods:
        assert re.search(r"^part \d of 6: ", pod.log, flags=re.MULTILINE), pod.log
    assert job.files.output == "/fsx/hyperpod-training/esm2/runs/tuned/predictions.csv"
    with (work_folder / "runs/tuned/predictions.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == [f"P{n}" for n in range(NUM_PROTEINS)]
    assert all(0 < float(row["probability_membrane"]) < 1 for row in rows)


@pytest.mark.parametrize("operator", [hyperpod])
def test_bandwidth(operator: str, shared: Path, tmp_path: Path) -> None:
    run(job_of(operator, "bandwidth"), shared, tmp_path / "bandwidth")
    assert (shared / "hyperpod-training/esm2/runs/bandwidth-g5.8xlarge/bandwidth.json").exists()


def hang_of(job: PodJob, *, seconds: int) -> dict[str, Any]:
    """The job's manifest with shorter times: the rule's, and those of the lines that it waits for."""
    manifest = job_manifest(job)
    [rule] = manifest["spec"]["runPolicy"]["logMonitoringConfiguration"]
    rule["expectedRecurringFrequencyInSeconds"] = seconds
    [container] = pod_templates(manifest)[0]["spec"]["containers"]
    [every] = [variable for variable in container["env"] if variable["name"] == BEAT_LINES]
    every["value"] = "1"
    return manifest


@pytest.mark.parametrize("operator", [hyperpod])
def test_a_process_that_stands_still_is_a_fault_to_the_agents(
    operator: str, shared: Path, tmp_path: Path
) -> None:
    """Return the second pod's result; the first one waits for it."""
    job = job_of(
        operator, "train", *SMALL, "train.max_steps=100000", "train.save_every_steps=50000"
    )
    manifest = hang_of(job, seconds=15)
    with Pods(manifest, shared, tmp_path / "job").running(job.files.config, job.num_pods) as pods:
        ports = [pod.port for pod in pods]
        wait_for(ports, ["ready"], seconds=SECONDS, alive=lambda: all_alive(pods))
        start(ports, free_port(), manifest)
        # The first step may take long without being wrong.
        until(pods, lambda: "step 1/" in pods[0].log)
        [worker] = children(pods[1].main.pid)
        os.kill(worker, signal.SIGSTOP)
        wait_for(ports, ["faulted"], seconds=SECONDS, alive=lambda: all_alive(pods))


def children(pid: int) -> list[int]:
    """Processes that it has started and that train."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in found
        if "seqlm\0train" in Path(f"/proc/{child}/cmdline").read_text()
    ]
