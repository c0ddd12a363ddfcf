"""BioNeMo jobs: resources and settings on Slurm and Kubernetes, and refusals at submission."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seqlm.launch.kubernetes_job import job_manifest
from seqlm.launch.pod_job import PodJob
from seqlm.runs.run_file import load_config
from seqlm.runs.stages import STAGES, program_of
from tests.job_schemas.validation import check, pod_templates
from tests.tools.cluster_files import shipped as slurm_cluster
from tests.tools.jobs.kubernetes.eks_jobs_made import IMAGE, shipped
from tools.images.build import FRAMEWORKS
from tools.jobs.kubernetes.jobs import pod_job
from tools.jobs.kubernetes.placement import EksWanted
from tools.jobs.slurm.request import SlurmWanted, job_request
from tools.jobs.work import NamedRun

RUN = Path("workloads/seqlm/configs/esm2_650m.yaml")


def slurm(*overrides: str, stage: str = "train-bionemo") -> dict[str, Any]:
    cluster = slurm_cluster("slurm-p5")
    lustre = cluster.storage.lustre.mount_path
    options = SlurmWanted(
        stage=stage, folder=f"{lustre}/ubuntu/esm2", image=f"{lustre}/images/i.sqsh"
    )
    config = load_config(RUN, overrides)
    return job_request(
        cluster, NamedRun(config, RUN.read_text()), list(overrides), options, version="abc"
    )


def pods(operator: str, *overrides: str, stage: str = "train-bionemo", nodes: str = "2") -> PodJob:
    cluster = shipped("eks-p5", training_operator=operator)
    wanted = EksWanted(stage=stage, image=IMAGE, nodes=nodes, team="proteins")
    config = load_config(RUN, overrides)
    return pod_job(
        cluster, NamedRun(config, RUN.read_text()), list(overrides), wanted, version="abc"
    )


def test_on_slurm_it_takes_all_gpus_of_all_nodes_and_its_own_data() -> None:
    found = slurm()
    job = found["job"]
    assert (job["stage"], job["gpus_per_node"], job["processes_per_node"]) == (
        "train-bionemo",
        8,
        8,
    )
    assert "--nodes=8" in found["sbatch"] and job["efa"]
    assert job["data_manifest"].endswith("/data/uniref50-bionemo/export.json")
    stage = STAGES["train-bionemo"]
    assert stage.resumes and stage.data_program == ("seqlm.commands.bionemo_data",)
    assert slurm(stage="convert-bionemo")["job"]["data_manifest"] == ""


@pytest.mark.parametrize("submit", [slurm, lambda *overrides: pods("kubeflow", *overrides)])
def test_reports_what_bionemo_cannot_do_before_submission(submit: Any) -> None:
    with pytest.raises(ValueError) as refused:
        submit("optim.name=muon", "bionemo.micro_batch_size=48")
    assert "optim.name: got muon" in str(refused.value)
    assert "bionemo.micro_batch_size: got 48 on" in str(refused.value)


@pytest.mark.parametrize("operator", ["hyperpod", "kubeflow"])
def test_in_pods_data_are_exported_first(operator: str) -> None:
    job = pods(operator)
    manifest = job_manifest(job)
    check(manifest)
    spec = pod_templates(manifest)[0]["spec"]
    _, data = spec["initContainers"]
    assert data["command"] == ["python3", "-m", "seqlm.commands.bionemo_data"]
    (main,) = spec["containers"]
    words = [*main["command"], *main["args"]]
    assert program_of("train-bionemo")[0] in words and "--nproc-per-node=8" in words
    assert main["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert job.max_retries == 10 and len(job.name) <= 40
    if operator == "kubeflow":
        # Its image's torchrun has no such option.
        assert not [word for word in words if word.startswith("--shutdown-timeout")]


def test_its_size_is_fixed() -> None:
    with pytest.raises(ValueError, match="only training continues with another number of nodes"):
        pods("hyperpod", nodes="2-4")


def test_stages_name_the_image_that_has_them() -> None:
    frameworks = {name: stage.framework for name, stage in STAGES.items() if stage.framework}
    assert frameworks == {"train-bionemo": "bionemo", "convert-bionemo": "bionemo"}
    assert {*frameworks.values()} <= {*FRAMEWORKS}
