"""States in HyperPod's managed memory, against a stand-in for AWS's client of it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from seqlm.training.checksums import DamagedError
from seqlm.training.memory.choice import LOCAL_SIZE
from seqlm.training.memory.job_folder import MANAGED_JOB
from seqlm.training.memory.managed_states import (
    ManagedStates,
    content_of,
    document_of,
    piece_bytes,
)
from seqlm.training.processes import processes
from tests.workloads.launch.pods_here import AGENT_PACKAGES
from tests.workloads.training import managed_memory_stand_in as stand_in
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.test_memory_states import Start

JOB = "train-sample-1a2b3c"


def in_processes(tmp_path: Path, target: Callable[..., None], *arguments: object) -> str:
    service = tmp_path / "service"
    service.mkdir()
    place = {MANAGED_JOB: JOB, LOCAL_SIZE: "1"}
    with forked(2, target, tmp_path, *arguments, log=tmp_path / "log", **place) as started:
        assert started.ends() == [0, 0], started.output
        return started.output


def _killed_and_started_again(folder: Path, mode: str) -> None:
    service = folder / "service"
    stand_in.install(service)
    start = Start(folder, mode)
    with processes() as here:
        with start.model(here) as model:
            assert model.restored_step() is None
            memory = model.checkpointer.memory
            assert isinstance(memory, ManagedStates)
            kept: dict[int, list[float]] = {}
            for number in range(1, 7):
                model.step(number)
                if number % 2 == 0:
                    model.save(number)
                    kept[number] = model.values()
            memory._join()
            here.sum_on_host(0.0)
            # The process is killed here, and the second one before it has written step 6.
            memory.forget = lambda: None  # type: ignore[method-assign]
        if here.rank == 1:
            (service / f"{JOB}-2/1/6").unlink()
        here.sum_on_host(0.0)
        with start.model(here) as model:
            assert model.restored_step() == 4
            assert model.values() == kept[4]
            assert model.checkpointer.memory is not None
            assert model.checkpointer.memory.take_messages() == [
                "continues from the state in memory of step 4 in HyperPod's managed tier"
            ]
        here.sum_on_host(0.0)
        assert not list(service.glob("*/*/*")), "the run has ended"


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_job_continues_from_the_newest_complete_state(tmp_path: Path, mode: str) -> None:
    in_processes(tmp_path, _killed_and_started_again, mode)
    assert not list((tmp_path / "checkpoints").iterdir()), "no state in memory is a checkpoint"


def _service_ends(folder: Path) -> None:
    service = folder / "service"
    stand_in.install(service)
    start = Start(folder)
    with processes() as here:
        with start.model(here) as model:
            memory = model.checkpointer.memory
            assert memory is not None
            for number in (2, 4, 6):
                model.step(number)
                model.save(number)
                memory._join()
                here.sum_on_host(0.0)
                if number == 2 and here.is_first:
                    stand_in.stop(service)
                here.sum_on_host(0.0)
            assert memory.is_off
            (message,) = memory.take_messages()
            assert "no states are kept in memory any more: process 0: HyperPod's managed" in message
        with start.model(here) as model:
            assert model.checkpointer.memory is None


def test_without_the_service_one_warning_is_printed(tmp_path: Path) -> None:
    output = in_processes(tmp_path, _service_ends)
    assert output.count("no states are kept in memory: HyperPod's managed memory: connection") == 1


def test_a_damaged_piece_is_refused() -> None:
    piece = bytearray(piece_bytes({"weight": torch.ones(3)}, {"step": 4}))
    assert document_of(content_of(bytes(piece))) == {"step": 4}
    for place in (0, len(piece) // 2, len(piece) - 1):
        damaged = bytearray(piece)
        damaged[place] ^= 1
        with pytest.raises(DamagedError, match="its checksum is wrong"):
            content_of(bytes(damaged))
    with pytest.raises(DamagedError, match="its checksum is wrong"):
        content_of(b"")
    with pytest.raises(DamagedError, match="cannot be read"):
        document_of(memoryview(b"{}"))


SIGNATURES = f"""
import inspect
from {stand_in.CLIENT_MODULE} import InMemoryCheckpointClient as client
from {stand_in.ERRORS_MODULE} import InMemoryStorageError
for name, method in inspect.getmembers(client, inspect.isfunction):
    print(name, *inspect.signature(method).parameters)
"""


def test_the_stand_in_has_the_signatures_of_the_package() -> None:
    """In a process of its own, because the stand-in may have been imported here."""
    path = os.pathsep.join([str(AGENT_PACKAGES), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", SIGNATURES],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if f"No module named '{stand_in.PACKAGE}'" in done.stderr:
        pytest.skip("amzn-sagemaker-checkpointing is not in .venv-hyperpod (make test-all puts it)")
    assert done.returncode == 0, done.stderr
    real = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    ours = inspect.getmembers(stand_in.InMemoryCheckpointClient, inspect.isfunction)
    public = [(name, method) for name, method in ours if name == "__init__" or name[0] != "_"]
    assert len(public) == 6
    for name, method in public:
        assert real[name].split() == [*inspect.signature(method).parameters]
