"""Submitting with TARGET=eks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.jobs.kubernetes.eks_jobs_made import IMAGE, RUN
from tests.tools.jobs.kubernetes.submissions import KINDS, SPACE, Run, submit, submitted
from tests.tools.kubernetes_api import Objects


@pytest.mark.parametrize(
    "stage",
    [
        "train",
        *(
            pytest.param(stage, marks=pytest.mark.long)
            for stage in ("data", "evaluate", "bandwidth")
        ),
    ],
)
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
    _, said = run("submit", "train", "--config", str(RUN), "--image", IMAGE, "parallel.mode=ddp")
    names = [line.split()[0] for line in said.splitlines()]
    assert names == ["job", "pods", "metrics", "report", "next"]
    assert f"/fsx/{SPACE}/esm2/runs/esm2_8m_sample/metrics.jsonl" in said
    _, said = run("submit", "embed", "--config", str(RUN), "--image", IMAGE)
    assert f"\nresults  /fsx/{SPACE}/esm2/runs/esm2_8m_sample/embeddings.parquet\nnext" in said


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda objects: objects.kept.clear(),
            f"namespace {SPACE} is not there; it comes with the cluster",
        ),
        (
            lambda objects: objects.kept.pop(("persistentvolumeclaims", SPACE, "fsx")),
            "claim fsx: not there; pods get the Lustre file system by it",
        ),
        (
            lambda objects: objects.add(
                "persistentvolumeclaims", SPACE, "fsx", status={"phase": "Pending"}
            ),
            "claim fsx: Pending",
        ),
        (
            lambda objects: objects.missing_groups.add("sagemaker.amazonaws.com"),
            "HyperPod's training operator is not installed",
        ),
        (
            lambda objects: objects.refused.update(hyperpodpytorchjobs="exceeded quota: pods"),
            "Kubernetes refuses the job: .*exceeded quota: pods.*kubernetes.access in the cluster file",
        ),
    ],
)
def test_reports_what_the_cluster_lacks(
    objects: Objects,
    run: Run,
    change: Callable[[Objects], Any],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "kubectl"))
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


@pytest.mark.long
def test_a_run_is_trained_once_at_a_time(objects: Objects, run: Run) -> None:
    first = submitted(objects, run)
    with pytest.raises(ValueError, match=f"run esm2-8m-sample is being trained by job {first}"):
        submit(run)
    submit(run, "evaluate")
    condition = {"type": "Completed", "status": "True"}
    objects.kept["hyperpodpytorchjobs", SPACE, first]["status"] = {"conditions": [condition]}
    submit(run)


@pytest.mark.long
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
    assert '"serviceAccountName": "training"' in json.dumps(job), (
        "whose pods may log to the cluster's MLflow"
    )
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
    _, status = run("status", "--team", "proteins", cluster="eks-p5")
    assert (
        f"job {name}" in status
        and "no quota: insufficient unused quota for nvidia.com/gpu, 16" in status
    )
    assert "8 more needed" not in status
