"""A model as pods of Kubernetes: what is made, by the real kubectl, and what is refused."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.endpoint import Endpoint
from config.reading.endpoint_file import load_endpoint
from seqlm.launch.kubernetes_service import PodService, manifests
from tests.job_schemas.validation import check
from tests.tools.jobs.kubernetes.eks_jobs_made import IMAGE, shipped
from tests.tools.kubernetes_api import Objects, api_server
from tools.jobs.kubernetes import serve as eks_serve
from tools.jobs.kubernetes.serve import pod_service

FILE = Path("endpoints/esm2.yaml")
MODEL = "/fsx/hyperpod-training/esm2/runs/localization/model"
NAMESPACE = "hyperpod-training"


def endpoint(**changes: Any) -> Endpoint:
    found = load_endpoint(FILE, {"image": IMAGE, "model": MODEL}, "eks")
    return Endpoint.model_validate(found.model_dump() | changes)


def served(
    cluster: str = "eks", team: str | None = None, priority: str | None = None, **changes: Any
) -> PodService:
    options = Namespace(team=team, priority=priority, namespace=None, group=None, gpu_slice=None)
    return pod_service(shipped(cluster), endpoint(**changes), options, version="abc")


def made(service: PodService) -> dict[str, dict[str, Any]]:
    return {manifest["kind"]: manifest for manifest in manifests(service)}


@pytest.mark.parametrize(
    "service",
    [
        served(),
        served(kubernetes={"replicas": 1, "gpus": 0}, limits={"max_proteins": 8}),
        served("eks-p5", team="proteins", priority="urgent", startup_seconds=3600),
    ],
    ids=["small", "cpu", "p5"],
)
def test_manifests_are_as_the_schemas_want_them(service: PodService) -> None:
    for manifest in manifests(service):
        check(manifest)
        assert manifest["metadata"]["namespace"] == service.namespace


def test_all_select_the_same_pods() -> None:
    found = made(served())
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == {"esm2/endpoint": "esm2"} for selector in selectors)
    assert {"esm2/endpoint": "esm2"}.items() <= labels.items()


def test_pods_of_a_team_count_against_its_quota() -> None:
    deployment = made(served("eks-p5", team="proteins", priority="urgent"))["Deployment"]
    expected = {
        "kueue.x-k8s.io/queue-name": "hyperpod-ns-proteins-localqueue",
        "kueue.x-k8s.io/priority-class": "urgent-priority",
    }
    for labels in (
        deployment["metadata"]["labels"],
        deployment["spec"]["template"]["metadata"]["labels"],
    ):
        assert expected.items() <= labels.items()
    # A change of these is no other Deployment.
    assert not expected.keys() & deployment["spec"]["selector"]["matchLabels"].keys()
    assert not [key for key in made(served())["Deployment"]["metadata"]["labels"] if "kueue" in key]
    with pytest.raises(ValueError, match="--priority: got high; the cluster file has urgent"):
        served("eks-p5", team="proteins", priority="high")


def test_pods_serve_the_model_and_may_nothing_else() -> None:
    pod = made(served())["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["model"] == {
        "name": "model",
        "mountPath": "/opt/ml/model",
        "subPath": "hyperpod-training/esm2/runs/localization/model",
        "readOnly": True,
    }
    assert container["command"] == ["serve"] and container["image"] == IMAGE
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert (
        pod["securityContext"]["runAsUser"] == 10001
        and pod["automountServiceAccountToken"] is False
    )
    policy = made(served())["NetworkPolicy"]["spec"]
    assert policy["egress"] == [] and policy["ingress"][0]["from"] == [{"podSelector": {}}]
    assert made(served())["Service"]["spec"]["type"] == "ClusterIP"


def test_an_end_has_the_time_that_the_server_takes() -> None:
    limits = {"drain_seconds": 20, "timeout_seconds": 30, "max_proteins": 8}
    pod = made(served(limits=limits))["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 60
    variables = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
    assert (
        variables["ESM2_SERVE_DRAIN_SECONDS"] == "20"
        and variables["ESM2_SERVE_MAX_PROTEINS"] == "8"
    )
    readiness = pod["containers"][0]["readinessProbe"]
    # Before the drain is over, because no service routes to the pod afterwards.
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < 5
    startup = pod["containers"][0]["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 600


@pytest.mark.parametrize(("replicas", "surge", "unavailable"), [(1, 1, 0), (4, 0, 1)])
def test_an_update_leaves_someone_to_answer(replicas: int, surge: int, unavailable: int) -> None:
    found = made(served(kubernetes={"replicas": replicas}))
    rolling = found["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert (rolling["maxSurge"], rolling["maxUnavailable"]) == (surge, unavailable)


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    with api_server(tmp_path) as (objects, kubeconfig):
        objects.add("namespaces", "", NAMESPACE)
        objects.kept["namespaces", "", NAMESPACE]["metadata"].pop("namespace")
        objects.add("persistentvolumeclaims", NAMESPACE, "fsx", status={"phase": "Bound"})
        yield objects, kubeconfig


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    given = ["eks_serve", "--cluster=clusters/eks.yaml", f"--endpoint={FILE}", f"--model={MODEL}"]
    monkeypatch.setattr(sys, "argv", [*given, f"--image={IMAGE}", *arguments])
    return eks_serve.main()


@pytest.mark.long
def test_it_is_made_changed_and_ended(
    cluster: tuple[Objects, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    objects, kubeconfig = cluster
    for _ in range(2):
        assert run(monkeypatch, f"--kubeconfig={kubeconfig}") == 0
    assert f"http://esm2.{NAMESPACE}:80/invocations" in capsys.readouterr().out
    kinds = ("networkpolicies", "poddisruptionbudgets", "services", "deployments")
    assert [said for said in objects.asked if said.startswith("apply")] == [
        f"apply {k} esm2" for k in kinds
    ] * 2
    assert all(len(objects.of(kind)) == 1 for kind in kinds)
    assert run(monkeypatch, f"--kubeconfig={kubeconfig}", "--delete") == 0
    assert objects.deleted == [f"{kind}/esm2" for kind in reversed(kinds)]


def test_reports_what_is_missing(
    cluster: tuple[Objects, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, kubeconfig = cluster
    objects.refused["deployments"] = "quota exceeded"
    with pytest.raises(ValueError, match=r"refuses the Deployment: .*quota exceeded"):
        run(monkeypatch, f"--kubeconfig={kubeconfig}")
    del objects.kept["persistentvolumeclaims", NAMESPACE, "fsx"]
    with pytest.raises(ValueError, match="claim fsx: not there"):
        run(monkeypatch, f"--kubeconfig={kubeconfig}")


def test_manifests_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, f"--to={tmp_path / 'out'}") == 0
    found = list(yaml.safe_load_all((tmp_path / "out" / "esm2.yaml").read_text()))
    assert [manifest["kind"] for manifest in found][-1] == "Deployment" and len(found) == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "/home/model"}, "MODEL: got /home/model; pods read folders below /fsx"),
        ({"model": "/fsx"}, "MODEL: got /fsx;"),
        ({"model": "/fsx/../etc"}, "MODEL: got /fsx/../etc"),
    ],
)
def test_models_elsewhere_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        served(**changes)


def test_files_for_sagemaker_alone_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.yaml"
    document = yaml.safe_load(FILE.read_text())
    del document["kubernetes"]
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ValueError, match="kubernetes: got nothing") as error:
        load_endpoint(path, {"image": IMAGE, "model": "s3://models/a/"}, "eks")
    assert "got s3://models/a/; pods read the file system" in str(error.value)
