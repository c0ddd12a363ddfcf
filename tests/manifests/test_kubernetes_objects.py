"""Kubernetes objects of the cluster's own, against Kubernetes's schemas, and the script in one of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from config.eks_cluster import EksCluster, system_groups
from config.reading.loader import load_eks_cluster
from config.resource_names import TRAINING_UID, job_namespaces
from manifests import lustre
from manifests.job_access import job_roles
from manifests.lustre import (
    LustreVolume,
    folder_job,
    persistent_volume,
    persistent_volume_claim,
    storage_class,
)
from manifests.training_collector import collector_objects
from studio import partitions

REMOTE_WRITE_URL = (
    "https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-1/api/v1/remote_write"
)
FILES = ("clusters/eks.yaml", "clusters/eks-p5.yaml")
VOLUME = LustreVolume(
    "fs-0123456789abcdef0", "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com", "abcdefgh", 1200
)


def cluster(file: str) -> EksCluster:
    return load_eks_cluster(Path(file))


def objects(file: str) -> list[dict[str, Any]]:
    namespaces = job_namespaces(cluster(file))
    return [
        storage_class(),
        *(persistent_volume(VOLUME, namespace) for namespace in namespaces),
        *(persistent_volume_claim(VOLUME, namespace) for namespace in namespaces),
        folder_job(namespaces),
        *job_roles(job_namespaces(cluster(file))),
        lustre.studio_service_account(),
        lustre.studio_program(),
        lustre.studio_queue_job(
            requests_url="https://sqs/requests.fifo",
            acknowledgements_url="https://sqs/acknowledgements",
            region="us-west-2",
        ),
        lustre.studio_shared_job([TRAINING_UID]),
        *collector_objects(
            cluster(file), job_namespaces(cluster(file)), remote_write_url=REMOTE_WRITE_URL
        ),
    ]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("version", [pytest.param("1.33", marks=pytest.mark.long), "1.34"])
def test_kubernetes_knows_every_field(file: str, version: str) -> None:
    for made in objects(file):
        kubernetes_validate.validate(made, version, strict=True)


def test_an_unknown_field_would_be_reported() -> None:
    wrong = persistent_volume(VOLUME, "any")
    wrong["spec"]["mountOption"] = ["flock"]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.34", strict=True)


def test_jobs_run_where_hyperpod_resumes_them() -> None:
    assert job_namespaces(cluster("clusters/eks.yaml")) == ["hyperpod-training"]
    assert job_namespaces(cluster("clusters/eks-p5.yaml")) == [
        "hyperpod-ns-proteins",
        "hyperpod-ns-structure",
    ]


def test_another_team_is_another_job() -> None:
    """A job cannot be changed."""
    names = {
        folder_job(namespaces)["metadata"]["name"] for namespaces in (["a"], ["a", "b"], ["a"])
    }
    assert len(names) == 2


def container(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return found


def test_folders_are_made_by_no_more_than_it_takes() -> None:
    found = container(folder_job(["hyperpod-training"]))
    security = found["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN", "FOWNER", "DAC_OVERRIDE"]}
    assert (
        security["allowPrivilegeEscalation"] is False and security["readOnlyRootFilesystem"] is True
    )
    assert "@sha256:" in found["image"]


@pytest.mark.parametrize("shared", [True, False])
def test_studios_jobs_see_their_folder_and_get_no_more_than_it_takes(shared: bool) -> None:
    queue = lustre.studio_queue_job(
        requests_url="https://sqs/r", acknowledgements_url="https://sqs/a", region="us-west-2"
    )
    job = lustre.studio_shared_job([TRAINING_UID]) if shared else queue["spec"]["jobTemplate"]
    found = container(job)
    pod = job["spec"]["template"]["spec"]
    assert found["securityContext"] == container(folder_job(["any"]))["securityContext"]
    assert "@sha256:" in found["image"]
    mounts = {mount["mountPath"]: mount for mount in found["volumeMounts"]}
    assert mounts["/studio"]["subPath"] == "studio" and mounts["/program"]["readOnly"] is True
    assert pod["automountServiceAccountToken"] is False
    # Pods that send no requests to AWS have no credentials.
    assert ("serviceAccountName" in pod) is not shared
    program = lustre.studio_program()
    assert pod["volumes"][1]["configMap"]["name"] == program["metadata"]["name"]
    assert found["command"] == ["python3", f"/program/{next(iter(program['data']))}"]


def test_the_program_of_studios_jobs_takes_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    found = container(lustre.studio_shared_job([TRAINING_UID]))
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(partitions, "make_partition", lambda *arguments: made.append(arguments))
    monkeypatch.setattr("sys.argv", [found["command"][1], *found["args"]])
    assert partitions.main() == 0
    assert made == [(Path("/studio"), "shared", [TRAINING_UID])]


def test_folders_are_the_training_user_s(tmp_path: Path) -> None:
    """The script itself, on a folder in place of /fsx; run again, it leaves what is in them alone."""
    if (
        subprocess.run(["id", "-u"], capture_output=True, text=True, check=True).stdout.strip()
        != "0"
    ):
        pytest.skip("giving folders away needs root")
    found = container(folder_job(["hyperpod-ns-a", "hyperpod-ns-b"]))
    command = [
        *found["command"],
        *(text.replace("/fsx/", f"{tmp_path}/") for text in found["args"]),
    ]
    subprocess.run(command, check=True, timeout=30)
    inner = tmp_path / "hyperpod-ns-a" / "kept"
    inner.write_text("results")
    subprocess.run(command, check=True, timeout=30)
    for namespace in ("hyperpod-ns-a", "hyperpod-ns-b"):
        status = (tmp_path / namespace).stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (
            TRAINING_UID,
            TRAINING_UID,
            0o750,
        )
    assert inner.read_text() == "results" and inner.stat().st_uid == 0


GPU = {"name": "gpu", "instance_type": "ml.g5.8xlarge", "num_instances": 1}
PLAN = {
    "name": "plan",
    "instance_type": "ml.p5.48xlarge",
    "num_instances": 4,
    "training_plan_arn": "arn:aws:sagemaker:us-west-2:123456789012:training-plan/p5",
}
CHECKED = GPU | {"name": "checked", "deep_health_checks": ["InstanceStress"]}
TAINTED = GPU | {"name": "tainted", "taints": [{"key": "lab", "effect": "NoSchedule"}]}
SPOT = GPU | {"name": "spot", "instance_type": "ml.m5.2xlarge", "capacity": "spot"}
SYSTEM = {"name": "system", "instance_type": "ml.m5.2xlarge", "num_instances": 1}
LATER = SYSTEM | {"name": "later", "num_instances": 0}


@pytest.mark.parametrize(
    ("groups", "waited_for"),
    [
        ([SYSTEM, GPU, PLAN], ["system"]),
        ([GPU, PLAN, CHECKED, TAINTED, SPOT, LATER], ["gpu"]),
        ([PLAN, CHECKED, SPOT], ["plan", "checked"]),
    ],
)
def test_the_first_nodes_are_those_that_come_soon(
    groups: list[dict[str, Any]], waited_for: list[str]
) -> None:
    base = cluster("clusters/eks.yaml").model_dump()
    made = EksCluster.model_validate(base | {"instance_groups": groups})
    assert [group.name for group in system_groups(made)] == waited_for
