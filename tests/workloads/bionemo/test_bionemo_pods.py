"""Commands of a pod of the stage train-bionemo, with stand-ins for BioNeMo's entry points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqlm.launch.kubernetes_job import config_map, job_manifest
from seqlm.launch.progress import bionemo_step
from seqlm.training.heartbeat import BEAT_LINES
from tests.tools.jobs.kubernetes.eks_jobs_made import made, shipped
from tests.workloads.bionemo.stand_in_bionemo import make_packages
from tests.workloads.launch.pods_here import Pods
from tests.workloads.training.training_runs import lines

pytestmark = pytest.mark.long

SECONDS = 240
RUN = (
    *("name=pods", "model.init_from=null", "model.max_residues=126", "train.tokens_per_pack=512"),
    *(
        "train.tokens_per_step=1024",
        "train.max_steps=30",
        "train.save_every_steps=10",
        "train.log_every_steps=1",
    ),
    *(
        "optim.name=adamw",
        "optim.warmup_steps=2",
        "optim.schedule=linear",
        "optim.weight_decay=0.01",
    ),
)


def test_a_pod_exports_trains_and_says_that_it_advances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(make_packages(tmp_path / "packages")))
    job = made(
        *RUN, stage="train-bionemo", cluster=shipped(training_operator="kubeflow"), nodes="1"
    )
    manifest = job_manifest(job)
    shared = tmp_path / "fsx"
    shared.mkdir()
    with Pods(manifest, shared, tmp_path / "pods").running(
        config_map(job)["data"]["config.yaml"], 1
    ) as pods:
        assert pods[0].ends(SECONDS) == 0, pods[0].log
    folder = shared / Path(job.files.work_folder).relative_to("/fsx")
    assert (folder / "data/sample-bionemo/export.json").exists()
    run_dir = folder / "runs/pods"
    assert bionemo_step(run_dir) == 30
    assert json.loads((run_dir / "all_results.json").read_text())["steps"] == 30
    assert [line["step"] for line in lines(run_dir, "train")] == list(range(1, 31))
    assert "advances: " in pods[0].log, f"HyperPod's agent looks for such lines ({BEAT_LINES})"
