"""A job on Trainium nodes: checks of the nodes, and the environment of its processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seqlm.launch import neuron
from seqlm.launch.node_check import check
from seqlm.training.heartbeat import SLOW_SECONDS, slow_seconds
from tests.workloads.launch.slurm_stand_ins import Slurm


@pytest.fixture
def slurm(tmp_path: Path) -> Slurm:
    slurm = Slurm(tmp_path)
    slurm.job = replace(
        slurm.job,
        gpus_per_node=0,
        neuron_devices=16,
        processes_per_node=32,
        efa=True,
        image="/fsx/i.sqsh",
    )
    (tmp_path / "help").write_text("--container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n")
    return slurm


def variables(words: list[str]) -> dict[str, str]:
    given = words[words.index("env") + 1 : words.index("-u") - 1]
    return dict(word.split("=", 1) for word in given)


def test_processes_get_only_neuron_settings(slurm: Slurm) -> None:
    status, output = slurm.run({"status": 0})
    assert status == 0, output
    (words,) = slurm.train_steps
    told = variables(words)
    assert told["PJRT_DEVICE"] == "NEURON" and told["NEURON_RT_EXEC_TIMEOUT"] == "600"
    # A compilation that a stopped job has begun is the next one's to end.
    assert told["NEURON_CC_FLAGS"].split() == ["--auto-cast=none", "--retry_failed_compilation"]
    assert (told["FI_PROVIDER"], told["FI_EFA_USE_DEVICE_RDMA"]) == ("efa", "1")
    assert not [name for name in told if name.startswith(("NCCL", "CUDA", "LD_"))]


def test_no_network_check_of_nccl_s_comes_before(slurm: Slurm) -> None:
    slurm.run({"status": 0})
    assert not slurm.network_checks
    slurm.job = replace(slurm.job, neuron_devices=0)
    slurm.run({"status": 0})
    assert slurm.network_checks


def test_without_an_image_the_node_s_own_libraries_are_found(slurm: Slurm) -> None:
    slurm.job = replace(slurm.job, image=None, efa=False)
    slurm.run({"status": 0})
    told = variables(slurm.train_steps[0])
    assert told["LD_LIBRARY_PATH"].split(":")[:2] == ["/opt/amazon/efa/lib", "/opt/aws/neuron/lib"]
    assert "FI_PROVIDER" not in told


def root(folder: Path, *, devices: int, driver: str = "2.25.4.0") -> Path:
    """A file system with devices, and what may lie beside them in /dev."""
    (folder / "dev").mkdir(parents=True)
    for name in (*(f"neuron{number}" for number in range(devices)), "neuron_monitor", "null"):
        (folder / "dev" / name).touch()
    (folder / "sys/module/neuron").mkdir(parents=True)
    (folder / "sys/module/neuron/version").write_text(f"{driver}\n")
    return folder


def test_devices_are_counted_and_the_driver_noted(tmp_path: Path) -> None:
    versions: dict[str, str] = {}
    assert neuron.device_problems(16, "Slurm", versions, root(tmp_path / "well", devices=16)) == []
    assert versions == {"driver": "2.25.4.0"}
    [problem] = neuron.device_problems(16, "Slurm", {}, root(tmp_path / "ill", devices=15))
    assert problem.startswith("Slurm gives the job 16 Neuron devices there, /dev has 15")
    [problem] = neuron.device_problems(16, "Kubernetes", versions, tmp_path)
    assert problem.startswith("Kubernetes gives the job 16 Neuron devices there, /dev has 0")


def test_the_check_of_a_node_has_them(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def look(*arguments: Any) -> list[str]:
        asked.append(arguments[:2])
        return ["none there"]

    monkeypatch.setattr(neuron, "device_problems", look)
    problems = check(replace(slurm.job, efa=False), slurm.job_folder, "node-1")["problems"]
    assert problems == ["none there"] and asked == [(16, "Slurm")]


def test_what_is_slow_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ESM2_SLOW_SECONDS", raising=False)
    assert slow_seconds() == SLOW_SECONDS
    monkeypatch.setenv("ESM2_SLOW_SECONDS", neuron.environment(efa=False)["ESM2_SLOW_SECONDS"])
    assert slow_seconds() == neuron.COMPILING_SECONDS > SLOW_SECONDS
