"""GPUs' metrics come from the image of the table's digest, from NVIDIA or from the cluster's copy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from config.reading.loader import load_cluster
from config.resource_names import ResourceNames
from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import gpu_exporter
from tests.lifecycle.https_server import body, served
from tests.lifecycle.node import SCRIPTS, StandIns, node_of
from tests.lifecycle.services import Services, services

__all__ = ["services"]
REFERENCE = json.loads((SCRIPTS / "downloads.json").read_text())["images"][0]["reference"]
DIGEST = REFERENCE.split("@")[1]
REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
_DOCKER = """
case "$1 $2" in
    "pull --quiet") touch "{state}/pulled" ;;
    "tag "*) touch "{state}/tagged" ;;
    "image inspect") [[ -e "{state}/tagged" ]] && echo sha256:id ;;
    "login "*) cat > "{state}/password"; echo "$DOCKER_CONFIG" > "{state}/config" ;;
esac
"""


@pytest.fixture
def node(
    tmp_path: Path, stand_ins: StandIns, services: Services, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Node]:
    """A worker with one GPU, its exporter on 127.0.0.1."""
    stand_ins.command("docker", _DOCKER.format(state=tmp_path))
    made = node_of(tmp_path)
    made.facts = replace(made.facts, address="127.0.0.1")
    prolog = made.host.path("/opt/slurm/etc/prolog.d/700_dcgm_job_map_register.sh")
    prolog.parent.mkdir(parents=True)
    prolog.touch()
    with served(body(b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 30\n')) as url:
        monkeypatch.setattr(gpu_exporter, "PORT", int(url.rsplit(":", 1)[1]))
        yield made


def docker_calls(stand_ins: StandIns, *verbs: str) -> list[str]:
    return [
        call for call in stand_ins.calls if call.startswith("docker ") and call.split()[1] in verbs
    ]


def test_the_image_of_the_digest_is_pulled_once_and_run(
    node: Node, stand_ins: StandIns, services: Services
) -> None:
    gpu_exporter.run_exporter(node)
    assert docker_calls(stand_ins, "pull", "tag") == [
        f"docker pull --quiet {REFERENCE}",
        f"docker tag {REFERENCE} node-setup/dcgm-exporter:4.6.0-4.8.3-distroless",
    ]
    unit = node.host.path("/etc/systemd/system/gpu-exporter.service").read_text()
    assert f"--publish 127.0.0.1:{gpu_exporter.PORT}:9400" in unit
    assert unit.count("/run/slurm/dcgm-job-mapping") == 4
    assert "    node-setup/dcgm-exporter:4.6.0-4.8.3-distroless\n" in unit
    assert node.warnings == []
    node.changes = []
    stand_ins.forget_calls()
    gpu_exporter.run_exporter(node)
    assert (
        node.changes == []
        and docker_calls(stand_ins, "pull", "tag") == []
        and services.restarts == []
    )


def test_an_image_that_somebody_else_named_so_is_replaced(
    node: Node, stand_ins: StandIns, tmp_path: Path
) -> None:
    gpu_exporter.run_exporter(node)
    node.host.path("/var/lib/node-setup/images/dcgm-exporter").write_text(
        f"{REFERENCE} sha256:another\n"
    )
    stand_ins.forget_calls()
    gpu_exporter.run_exporter(node)
    assert len(docker_calls(stand_ins, "pull")) == 1


def test_in_a_closed_network_it_comes_from_the_clusters_repository(
    node: Node, stand_ins: StandIns, tmp_path: Path
) -> None:
    node.settings = replace(node.settings, downloads="artifact_bucket")
    stand_ins.command("aws", '[[ "$1" == sts ]] && echo 123456789012 || echo secret')
    gpu_exporter.run_exporter(node)
    repository = f"{REGISTRY}/esm2-slurm/training@{DIGEST}"
    assert docker_calls(stand_ins, "login", "pull", "tag")[:2] == [
        f"docker login --username AWS --password-stdin {REGISTRY}",
        f"docker pull --quiet {repository}",
    ]
    assert (tmp_path / "password").read_text() == "secret\n"
    assert not Path((tmp_path / "config").read_text().strip()).exists()


def test_the_repository_is_the_clusters() -> None:
    cluster = load_cluster(Path("clusters/slurm.yaml"))
    assert ResourceNames(cluster).image_repository == f"{cluster.name}/training"


def test_retries_a_registry_that_is_down(node: Node, stand_ins: StandIns, tmp_path: Path) -> None:
    stand_ins.command(
        "docker",
        f"""
        [[ "$1" != pull || -e "{tmp_path}/asked" ]] || {{ touch "{tmp_path}/asked"; exit 1; }}
        [[ "$1 $2" != "image inspect" || -e "{tmp_path}/tagged" ]] || exit 1
        [[ "$1" != tag ]] || touch "{tmp_path}/tagged" """,
    )
    gpu_exporter.run_exporter(node)
    assert len(docker_calls(stand_ins, "pull")) == 2


@pytest.mark.parametrize(
    ("said", "advice", "tries"),
    [
        ("manifest unknown", "make mirror-downloads", 1),
        ("dial tcp: i/o timeout", "make mirror-downloads", 4),
        ("write /var/lib/docker: no space left on device", "the disk is full", 1),
    ],
)
def test_an_image_that_cannot_be_had(
    node: Node, stand_ins: StandIns, said: str, advice: str, tries: int
) -> None:
    stand_ins.command("docker", f"echo '{said}' >&2; exit 1")
    with pytest.raises(SetupError, match=advice):
        gpu_exporter.run_exporter(node)
    assert len(docker_calls(stand_ins, "pull")) == tries


def test_warns_of_a_missing_gpu(node: Node) -> None:
    node.facts = replace(node.facts, hardware=replace(node.facts.hardware, num_gpus=8))
    gpu_exporter.run_exporter(node)
    assert node.warnings[0].startswith(
        "dcgm-exporter has metrics of 1 GPUs, and ml.g5.8xlarge has 8: see `nvidia-smi"
    )


def test_without_hyperpods_prolog_there_are_no_job_ids(node: Node) -> None:
    node.host.path("/opt/slurm/etc/prolog.d/700_dcgm_job_map_register.sh").unlink()
    gpu_exporter.run_exporter(node)
    assert node.warnings[0].startswith("metrics of GPUs carry no job ids")


def test_a_worker_without_gpus_runs_none(node: Node, stand_ins: StandIns) -> None:
    node.facts = replace(node.facts, hardware=replace(node.facts.hardware, num_gpus=0))
    gpu_exporter.run_exporter(node)
    assert node.changes == [] and stand_ins.calls == []
