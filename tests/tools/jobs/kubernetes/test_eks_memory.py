"""Jobs of Kubernetes that keep states in memory: on their nodes, or in HyperPod's managed tier."""

from __future__ import annotations

from typing import Any

import pytest

from seqlm.launch.kubernetes_job import job_manifest
from seqlm.launch.pod_job import PodJob
from seqlm.launch.pod_memory import NODE_MEMORY, ROOT
from seqlm.training.memory.job_folder import MANAGED_JOB
from tests.job_schemas.validation import check
from tests.tools.jobs.kubernetes.eks_jobs_made import CLUSTERS, IMAGE, RUN, made, pod, shipped
from tests.tools.jobs.kubernetes.submissions import Run
from tests.tools.kubernetes_api import Objects

ON_NODES: dict[str, Any] = {"memory_states": {"storage": "nodes"}}
MANAGED: dict[str, Any] = {"memory_states": {"storage": "managed", "percent": 40}}


def environment_of(job: PodJob) -> dict[str, str]:
    [main] = pod(job)["containers"]
    return {variable["name"]: variable.get("value", "") for variable in main["env"]}


@pytest.mark.parametrize("operator", ["hyperpod", "kubeflow"])
def test_a_training_mounts_the_folder_of_its_namespace(operator: str) -> None:
    job = made("parallel.mode=fsdp", cluster=shipped(training_operator=operator, **ON_NODES))
    check(job_manifest(job))
    spec = pod(job)
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == "node-memory"]
    assert volume["persistentVolumeClaim"] == {"claimName": "node-memory"}
    assert not any("hostPath" in volume for volume in spec["volumes"]), "namespaces forbid it"
    [main] = spec["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in main["volumeMounts"]}
    assert mounts["node-memory"] == NODE_MEMORY
    assert environment_of(job)[ROOT] == NODE_MEMORY
    words = [*main["command"], *main["args"]]
    assert words[:4] == ["python3", "-m", "seqlm.launch.pod_memory", job.name]
    plain = made("parallel.mode=fsdp", cluster=shipped(training_operator=operator))
    [other] = pod(plain)["containers"]
    assert words[4:6] == other["command"][:2], "then the launcher, as without a folder"


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["train.memory_checkpoint_steps=0"], {}),
        (["evaluate.split=test"], {"stage": "evaluate"}),
        ([], {"namespace": "hyperpod-other"}),
    ],
)
def test_other_jobs_have_no_folder(overrides: list[str], wanted: dict[str, Any]) -> None:
    job = made(*overrides, cluster=shipped(**ON_NODES), **wanted)
    assert job.memory_claim is None and ROOT not in environment_of(job)
    assert NODE_MEMORY not in str(job_manifest(job))


def test_the_managed_tier_takes_memory_from_pods() -> None:
    job = made(cluster=shipped(**MANAGED))
    assert job.has_managed_memory and environment_of(job)[MANAGED_JOB] == job.name
    assert MANAGED_JOB not in environment_of(made(cluster=shipped(**ON_NODES)))
    # A g5.8xlarge has 128 GiB: 85 % less 1, and 45 % less 1.
    sizes = (made().resources.memory_gib, job.resources.memory_gib)
    assert sizes == (107, 56)


def test_a_missing_folder_is_named_before_a_job_exists(
    objects: Objects, run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cluster") / "eks.yaml"
    path.write_text((CLUSTERS / "eks.yaml").read_text() + "\nmemory_states: {storage: nodes}\n")
    arguments = ("submit", "train", "--config", str(RUN), "--image", IMAGE)
    with pytest.raises(ValueError, match="claim node-memory is not in hyperpod-training"):
        run(*arguments, cluster=path)
    objects.add("persistentvolumeclaims", "hyperpod-training", "node-memory")
    status, said = run(*arguments, cluster=path)
    assert status == 0, said
