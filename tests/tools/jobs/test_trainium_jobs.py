"""Jobs on Trainium: whole nodes, a process a NeuronCore, and nothing of NVIDIA's."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqlm.language.config import ChatConfig
from seqlm.launch.kubernetes_job import job_manifest
from seqlm.runs.run_file import load_config, xla_violations
from tests.job_schemas.validation import check, pod_templates
from tests.tools.cluster_files import shipped, shipped_eks
from tests.tools.jobs.kubernetes.eks_jobs_made import made
from tools.images.build import FRAMEWORKS, base_image
from tools.jobs.kubernetes.jobs import framework_of
from tools.jobs.slurm.request import SlurmWanted, job_request
from tools.jobs.work import NamedRun

RUN = Path("workloads/seqlm/configs/esm2_8m_sample.yaml")
TRN1 = shipped("slurm-trn1")
TRN2 = shipped_eks("eks-trn2")
OF_NVIDIA = ("NCCL", "NVIDIA", "nvidia", "CUDA")


def wanted(**changes: Any) -> SlurmWanted:
    return SlurmWanted(
        **{"stage": "train", "folder": "/fsx/ubuntu/esm2", "image": "/fsx/i.sqsh", **changes}
    )


def request(*overrides: str, **changes: Any) -> dict[str, Any]:
    config = load_config(RUN, overrides)
    return job_request(
        TRN1, NamedRun(config, RUN.read_text()), list(overrides), wanted(**changes), version="abc"
    )


def test_slurm_gives_whole_nodes() -> None:
    """Jobs request no GRES, which HyperPod's Slurm is not known to have for these devices."""
    found = request()
    options = found["sbatch"]
    job = found["job"]
    assert {"--partition=trn1", "--nodes=4", "--exclusive"} <= set(options)
    assert not [option for option in options if option.startswith(("--gpus", "--gres"))]
    assert (job["gpus_per_node"], job["neuron_devices"], job["processes_per_node"]) == (0, 16, 32)
    assert job["efa"] and not request(nodes="1")["job"]["efa"]


def test_a_compilation_may_be_long_and_a_step_too() -> None:
    """NCCL's bounds are not Neuron's."""
    assert request(hang_seconds=3600)["job"]["hang_seconds"] == 3600


def test_without_the_devices_any_stage_runs() -> None:
    job = request(stage="evaluate", gpus_per_node=0)["job"]
    assert (job["neuron_devices"], job["processes_per_node"], job["efa"]) == (0, 1, False)
    job = request(stage="data")["job"]
    assert (job["neuron_devices"], job["processes_per_node"]) == (0, 1)


REFUSED = [
    (
        (),
        {"stage": "evaluate"},
        "has Trainium2?, on which only train runs; evaluate takes NVIDIA GPUs, or",
    ),
    ((), {"gpus_per_node": 8}, "--gpus-per-node: got 8; a job has the 16 devices of ml.trn"),
    (("parallel.mode=fsdp",), {}, "parallel.mode: got fsdp; FSDP2 does not shard XLA's tensors"),
    (
        ("optim.name=muon",),
        {},
        "optim.name: got muon, parts of which torch_xla computes on the host",
    ),
    (("train.compile=on",), {}, "train.compile: got on; XLA compiles by itself"),
    (("train.kernels=on",), {}, "train.kernels: got on; the kernels are for NVIDIA GPUs"),
    (("task.kind=binary", "task.table=[sample]"), {}, "task: fine-tuning is not made for XLA"),
]


@pytest.mark.parametrize(("overrides", "changes", "problem"), REFUSED)
def test_reports_what_trainium_does_not_support(
    overrides: tuple[str, ...], changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        request(*overrides, **changes)
    with pytest.raises(ValueError, match=problem):
        made(*overrides, cluster=TRN2, **changes)


def test_conversations_are_a_fine_tuning_too() -> None:
    config = replace(load_config(RUN), chat=ChatConfig())
    assert [problem.partition(":")[0] for problem in xla_violations(config)] == ["chat"]


def test_the_bandwidth_measured_is_nccl_s() -> None:
    with pytest.raises(ValueError, match="on which only train runs; bandwidth takes NVIDIA GPUs"):
        job_request(TRN1, None, [], wanted(stage="bandwidth"), version="abc")


@pytest.mark.parametrize("operator", ["hyperpod", "kubeflow"])
def test_pods_have_whole_nodes(operator: Any) -> None:
    job = made(cluster=TRN2.model_copy(update={"training_operator": operator}))
    manifest = job_manifest(job)
    check(manifest)
    spec = pod_templates(manifest)[0]["spec"]
    (main,) = spec["containers"]
    (first, data) = spec["initContainers"]
    limits = main["resources"]["limits"]
    assert limits == main["resources"]["requests"] == first["resources"]["limits"]
    assert (limits["aws.amazon.com/neuron"], limits["vpc.amazonaws.com/efa"]) == ("16", "16")
    assert "aws.amazon.com/neuron" not in data["resources"]["limits"]
    assert {"--gpus=0", "--neuron=16", "--efa=16"} <= set(first["args"])
    assert manifest["spec"]["nprocPerNode"] == "64" and "--nproc-per-node=64" in main["args"]
    variables = {variable["name"]: variable.get("value", "") for variable in main["env"]}
    assert variables["PJRT_DEVICE"] == "NEURON" and variables["FI_PROVIDER"] == "efa"
    assert not [name for name in [*variables, *limits] if any(other in name for other in OF_NVIDIA)]


def test_the_operators_know_that_compiling_takes_long() -> None:
    job = made(cluster=TRN2)
    (rule,) = job_manifest(job)["spec"]["runPolicy"]["logMonitoringConfiguration"]
    variables = pod_templates(job_manifest(job))[0]["spec"]["containers"][0]["env"]
    (told,) = (
        variable["value"] for variable in variables if variable["name"] == "ESM2_SLOW_SECONDS"
    )
    assert rule["expectedStartCutOffInSeconds"] == int(told) > 3600


def test_the_image_is_that_of_the_nodes() -> None:
    assert {framework_of(TRN2, stage, None) for stage in ("train", "data")} == {"neuron"}
    assert (
        framework_of(shipped_eks("eks-p5"), "train", None)
        == framework_of(TRN2, "train", "system")
        == "esm2"
    )
    assert "neuron" in FRAMEWORKS


def test_the_base_is_the_last_one_for_which_this_is_supported() -> None:
    """The builder has to pin the base image, because no public record has its digest."""
    framework = FRAMEWORKS["neuron"]
    base = json.loads(framework.versions.read_text())["base"]
    assert re.search(r"-sdk2\.29\.\d+-", base["tag"]) and base["torch"].startswith("2.9.")
    assert base["tag"] in Path("docs/trainium.md").read_text()
    with pytest.raises(
        ValueError, match=f"base.digest is None.*imagetools inspect {base['image']}:"
    ):
        base_image(framework.versions)
    assert {"ENTRYPOINT []", "USER 10001:10001"} <= set(
        framework.dockerfile.read_text().splitlines()
    )


def test_torchrun_has_no_option_that_its_older_torch_lacks() -> None:
    job = made(cluster=TRN2.model_copy(update={"training_operator": "kubeflow"}))
    (main,) = pod_templates(job_manifest(job))[0]["spec"]["containers"]
    assert not [word for word in main["args"] if word.startswith("--shutdown-timeout")]
