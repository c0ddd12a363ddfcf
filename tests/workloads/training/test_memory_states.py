"""States in memory: what a start continues from after a process or a node is lost, and what it refuses."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from seqlm.runs.run_file import RunFile
from seqlm.training import checkpoint
from seqlm.training.checkpoint import Checkpointer
from seqlm.training.checksums import SUMS_FILE
from seqlm.training.config import ParallelConfig, TrainConfig
from seqlm.training.memory import states
from seqlm.training.memory.choice import LOCAL_SIZE, states_in_memory
from seqlm.training.memory.interval import PROBE_STEPS, Cost, Interval
from seqlm.training.memory.job_folder import MEMORY_FOLDER, MEMORY_PROBLEM
from seqlm.training.memory.layout import Layout
from seqlm.training.memory.pieces import STATE_FILE
from seqlm.training.processes import Processes, processes
from seqlm.training.tracking.run_log import RESULTS_FILE
from tests.workloads.training.forked_processes import forked, train_and_record_all
from tests.workloads.training.training_runs import events, lines, losses

STEPS = 2
"""Steps between two states."""
_SEEDS = itertools.count()
"""Seed of each start of a process."""


@dataclass(frozen=True)
class Start:
    """Processes of one start, one per node, each with the memory of its node below ``folder``."""

    folder: Path
    mode: str = "ddp"
    trains_all: bool = True
    """Whether the bias is trained and saved, too."""

    def memory_of(self, node: int) -> Path:
        return self.folder / f"node-{node}"

    @contextmanager
    def model(self, here: Processes) -> Iterator[Model]:
        """Yield a small model whose weights differ from start to start, with its checkpoints."""
        # Processes of DDP start with the same weights.
        torch.manual_seed(next(_SEEDS))
        module = nn.Linear(5, 3)
        module.bias.requires_grad_(self.trains_all)
        if self.mode == "fsdp":
            fully_shard(module, mesh=init_device_mesh("cpu", (here.world_size,)))
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.1)
        config = RunFile(
            name="run",
            runs=str(self.folder),
            parallel=ParallelConfig(mode=self.mode),  # type: ignore[arg-type]
            train=TrainConfig(memory_checkpoint_steps=STEPS),
        )
        memory = states_in_memory(config, here, {"seed": 1})
        with Checkpointer(
            self.folder / "checkpoints",
            here,
            {"seed": 1},
            2,
            trains_all=self.trains_all,
            memory=memory,
        ) as checkpointer:
            yield Model(module, optimizer, checkpointer)


@dataclass(frozen=True)
class Model:
    module: nn.Module
    optimizer: torch.optim.Optimizer
    checkpointer: Checkpointer

    def values(self) -> list[float]:
        """Weights and moments of this process."""
        found: list[float] = []
        for parameter in self.optimizer.param_groups[0]["params"]:
            for value in (parameter.detach(), *self.optimizer.state[parameter].values()):
                local = value.to_local() if isinstance(value, DTensor) else value
                found += local.flatten().tolist()
        return found

    def step(self, number: int) -> None:
        self.module(torch.full((1, 5), float(number))).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, number: int, *, durable: bool = False) -> None:
        save = self.checkpointer.save if durable else self.checkpointer.save_in_memory
        save(number, self.module, [self.optimizer], {"progress": {"step": number}})

    def restored_step(self) -> int | None:
        found = self.checkpointer.restore(self.module, [self.optimizer])
        return None if found is None else found["progress"]["step"]


def in_processes(tmp_path: Path, target: Callable[..., None], number: int, *arguments: Any) -> str:
    with forked(number, target, tmp_path, *arguments, log=tmp_path / "log") as started:
        assert started.ends() == [0] * number, started.output
        return started.output


@contextmanager
def node_of(start: Start, local_size: int = 1) -> Iterator[Processes]:
    """Join the others as a process of its node."""
    folder = start.memory_of(int(os.environ["RANK"]) // local_size)
    folder.mkdir(exist_ok=True)
    os.environ |= {MEMORY_FOLDER: str(folder), LOCAL_SIZE: str(local_size)}
    with processes() as here:
        yield here


class KilledError(Exception):
    """Stands for the end of a process that deletes nothing."""


def _saved_and_lost(start: Start, here: Processes, *, durable_at: int = 0) -> list[float]:
    """Save steps 2 and 4 in memory, and be killed after step 5; return the values of step 4."""
    kept: list[float] = []
    try:
        with start.model(here) as model:
            assert model.restored_step() is None
            for number in range(1, 6):
                model.step(number)
                if number == durable_at:
                    model.save(number, durable=True)
                elif number % STEPS == 0:
                    model.save(number)
                    kept = model.values()
            model.checkpointer.finish()
            assert model.checkpointer.memory is not None
            model.checkpointer.memory._join()
            here.sum_on_host(0.0)
            raise KilledError
    except KilledError:
        return kept


def _lose_a_node(folder: Path, mode: str) -> None:
    start = Start(folder, mode)
    with node_of(start) as here:
        kept = _saved_and_lost(start, here)
        if here.is_first:
            shutil.rmtree(start.memory_of(1))
            start.memory_of(1).mkdir()
        here.sum_on_host(0.0)
        with start.model(here) as model:
            assert model.restored_step() == 4
            assert model.values() == kept
            assert model.checkpointer.memory is not None
            (message,) = model.checkpointer.memory.take_messages()
            # Sharded, the new node has lost its copy of the other node's piece, too.
            copies = "; copies made again: 1" if mode == "fsdp" else ""
            assert message == (
                "continues from the state in memory of step 4; pieces copied from other nodes: 1"
                + copies
            )
            # The next state replaces it.
            for number in (5, 6):
                model.step(number)
            model.save(6)
            model.save(8)
            assert {path.name for path in start.memory_of(here.rank).iterdir()} >= {"step-00000006"}
        assert list(start.memory_of(here.rank).iterdir()) == [], "the run has ended"


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_lost_node_gets_its_state_from_the_other_one(tmp_path: Path, mode: str) -> None:
    in_processes(tmp_path, _lose_a_node, 2, mode)


def _die_before_the_copies(folder: Path) -> None:
    start = Start(folder, "fsdp")
    with node_of(start) as here:
        kept = _saved_and_lost(start, here)
        newest = start.memory_of(here.rank) / "step-00000004"
        shutil.rmtree(newest / f"shard-{1 - here.rank:05d}-part-000")
        for num_read in (0, 1):
            with pytest.raises(KilledError), start.model(here) as model:
                assert model.restored_step() == 4
                assert model.values() == kept
                assert model.checkpointer.memory is not None
                (message,) = model.checkpointer.memory.take_messages()
                assert message.endswith(f"; copies made again: {2 - num_read}")
                assert (f"pieces copied from other nodes: {num_read}" in message) == bool(num_read)
                raise KilledError
            if here.is_first:
                shutil.rmtree(start.memory_of(1))
                start.memory_of(1).mkdir()
            here.sum_on_host(0.0)


def test_a_state_without_copies_is_copied_by_the_start_that_uses_it(tmp_path: Path) -> None:
    """Otherwise a node that is lost before the next state takes the state with it."""
    in_processes(tmp_path, _die_before_the_copies, 2)


def _parts_of_one_node(folder: Path) -> None:
    start = Start(folder)
    with node_of(start, local_size=2) as here:
        kept = _saved_and_lost(start, here)
        newest = start.memory_of(0) / "step-00000004"
        found = {path.name for path in newest.iterdir()}
        assert found == {"shard-00000-part-000", "shard-00000-part-001"}, found
        with start.model(here) as model:
            assert model.restored_step() == 4
            assert model.values() == kept


def _delete_late(folder: Path) -> None:
    start = Start(folder)
    newest = start.memory_of(0) / "step-00000004"
    gather = Processes.gather

    def late(here: Processes, mine: dict[Any, Any]) -> dict[Any, Any]:
        """Return from the exchange before the second state once the other process has written it."""
        found = gather(here, mine)
        is_of_problems = all(value == "" for value in found.values())
        if here.is_first and is_of_problems and (start.memory_of(0) / "step-00000002").exists():
            deadline = time.monotonic() + 60
            while not (newest / "shard-00000-part-001").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        return found

    with node_of(start, local_size=2) as here:
        with mock.patch.object(Processes, "gather", late):
            kept = _saved_and_lost(start, here)
        with start.model(here) as model:
            assert model.restored_step() == 4
            assert model.values() == kept


def test_a_process_that_deletes_late_keeps_what_another_one_has_written(tmp_path: Path) -> None:
    """The first process of a node deletes former states for all of them."""
    in_processes(tmp_path, _delete_late, 2)


def test_processes_of_a_node_write_a_part_each(tmp_path: Path) -> None:
    output = in_processes(tmp_path, _parts_of_one_node, 2)
    assert output.count("the job has one node, so states in memory have no copy") == 2


def _damage(folder: Path) -> None:
    start = Start(folder)
    with node_of(start) as here:
        _saved_and_lost(start, here, durable_at=3)
        path = start.memory_of(here.rank) / f"step-00000004/shard-00000-part-000/{STATE_FILE}"
        if not here.is_first:
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        with start.model(here) as model:
            assert model.restored_step() == 3
        assert not path.exists()


def test_a_damaged_state_falls_back_to_the_checkpoint(tmp_path: Path) -> None:
    output = in_processes(tmp_path, _damage, 2)
    assert f"{STATE_FILE} is damaged: its checksum is wrong; falling back" in output


def _damage_the_only_state(folder: Path) -> None:
    start = Start(folder)
    with node_of(start) as here:
        _saved_and_lost(start, here)
        for path in start.memory_of(here.rank).glob(f"step-00000004/*/{STATE_FILE}"):
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        with start.model(here) as model:
            assert model.restored_step() is None
            assert not model.optimizer.state, "a first step finds moments of 0"


def test_a_damaged_state_leaves_none_in_the_optimizer(tmp_path: Path) -> None:
    in_processes(tmp_path, _damage_the_only_state, 2)


def _unreadable_for_one_process(folder: Path) -> None:
    start = Start(folder, trains_all=False)
    plain = mock.patch.object(checkpoint, "bare", lambda module: module)
    with plain, node_of(start) as here:
        _saved_and_lost(start, here)
        with start.model(here) as model:
            memory = model.checkpointer.memory
            assert memory is not None
            read = memory._read

            def read_by_others(*arguments: Any) -> Any:
                found = read(*arguments)
                if here.is_first:
                    raise OSError("no answer")
                return found

            before = [value.detach().clone() for value in model.module.parameters()]
            with mock.patch.object(memory, "_read", read_by_others):
                assert model.restored_step() is None
            assert all(map(torch.equal, before, model.module.parameters()))
            assert not model.optimizer.state


def test_adapters_start_again_if_one_process_cannot_read_the_state(tmp_path: Path) -> None:
    """The frozen weights are not read again, so nothing would replace what the others have read."""
    output = in_processes(tmp_path, _unreadable_for_one_process, 2)
    assert "cannot be read: no answer; falling back" in output


def _newer_checkpoint(folder: Path) -> None:
    start = Start(folder)
    with node_of(start) as here:
        _saved_and_lost(start, here, durable_at=5)
        with start.model(here) as model:
            assert model.restored_step() == 5
            assert list(start.memory_of(here.rank).iterdir()) == []


def test_a_newer_checkpoint_is_used(tmp_path: Path) -> None:
    in_processes(tmp_path, _newer_checkpoint, 2)


def _save_on_two_nodes(folder: Path) -> None:
    start = Start(folder)
    with node_of(start) as here:
        _saved_and_lost(start, here, durable_at=3)


def _start_on_one_node(folder: Path) -> None:
    start = Start(folder)
    with node_of(start) as here, start.model(here) as model:
        assert model.restored_step() == 3
        assert list(start.memory_of(0).iterdir()) == []


def test_a_start_with_fewer_nodes_uses_the_checkpoint(tmp_path: Path) -> None:
    """With DDP, the remaining node has all of the newer state."""
    in_processes(tmp_path, _save_on_two_nodes, 2)
    in_processes(tmp_path, _start_on_one_node, 1)


def _short_memory(folder: Path) -> None:
    start = Start(folder)
    with node_of(start) as here, mock.patch.object(states, "available_bytes", lambda _: 100):
        with start.model(here) as model:
            model.step(1)
            model.save(2)
            memory = model.checkpointer.memory
            assert memory is not None and memory.is_off and not memory.is_due(4)
            (message,) = memory.take_messages()
            assert message.startswith(
                "warning: no states are kept in memory any more: node 0 has 0.00 GB of memory"
            )
            model.save(4)
            assert memory.take_messages() == []
        assert list(start.memory_of(here.rank).iterdir()) == []


def test_short_memory_costs_one_warning(tmp_path: Path) -> None:
    in_processes(tmp_path, _short_memory, 1)


def test_without_a_folder_nothing_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MEMORY_FOLDER, raising=False)
    with processes() as here:
        for steps in (None, 0):
            config = RunFile(name="run", train=TrainConfig(memory_checkpoint_steps=steps))
            assert states_in_memory(config, here, {}) is None
        assert capsys.readouterr().out == ""
        config = RunFile(name="run", train=TrainConfig(memory_checkpoint_steps=5))
        assert states_in_memory(config, here, {}) is None
    assert "no states are kept in memory: the run is no job of a cluster" in capsys.readouterr().out


def _one_node_without_a_folder(folder: Path) -> None:
    start = Start(folder)
    if os.environ["RANK"] == "1":
        os.environ[MEMORY_PROBLEM] = "/node-memory: permission denied"
    with node_of(start) as here:
        assert states_in_memory(RunFile(name="run"), here, {}) is None


def test_a_node_without_a_folder_costs_one_warning(tmp_path: Path) -> None:
    """Also if the run file leaves the interval to the trainer."""
    output = in_processes(tmp_path, _one_node_without_a_folder, 2)
    warning = "no states are kept in memory: /node-memory: permission denied. A restart uses"
    assert output.count(warning) == 1


@pytest.mark.parametrize(
    ("layout", "copies", "pieces_of_a_node"),
    [
        (Layout(8, 4, 1), False, 4),
        (Layout(8, 4, 8), True, 4),
        (Layout(8, 4, 4), False, 4),
        (Layout(8, 2, 4), False, 2),
        (Layout(8, 8, 8), False, 8),
        (Layout(4, 1, 4), True, 1),
    ],
)
def test_each_tensor_is_in_one_piece_of_its_shard(
    layout: Layout, copies: bool, pieces_of_a_node: int
) -> None:
    names = {f"tensor-{number}": number for number in range(9)}
    assert layout.problem == "" and layout.copies == copies
    for node in range(layout.num_nodes):
        assert len(set(layout.pieces_read_on(node))) == pieces_of_a_node
    parts: dict[str, list[str]] = {
        layout.piece_of(rank): layout.part_of(rank, names) for rank in range(layout.world_size)
    }
    for rank in range(layout.world_size):
        read = [name for piece in layout.pieces_read_by(rank) for name in parts[piece]]
        assert sorted(read) == sorted(names)
        assert layout.sender_to(layout.receiver_of(rank)) == rank


def test_an_irregular_layout_is_named() -> None:
    assert "6 processes, 2 per node, 3 per copy of the model" in Layout(6, 2, 3).problem


@pytest.mark.parametrize(
    ("cost", "steps"), [(Cost(0.03, 0.1), 3), (Cost(0.001, 7.0), 7), (Cost(0.0, 0.0), 1)]
)
def test_the_interval_follows_from_the_cost(cost: Cost, steps: int) -> None:
    interval = Interval(None, save_every_steps=500)
    with processes() as here:
        for number in (1, 2):
            step = number * PROBE_STEPS
            assert interval.is_due(step) and not interval.is_due(step + 1)
            assert interval.measured(step, cost, float(step), here) == []
        (report,) = interval.measured(3 * PROBE_STEPS, cost, 3.0 * PROBE_STEPS, here)
    assert report.startswith(f"states in memory: every {steps} steps")
    assert interval.is_due(steps * 11)


def test_states_as_rare_as_checkpoints_are_not_kept() -> None:
    interval = Interval(None, save_every_steps=20)
    with processes() as here:
        for number in (1, 2, 3):
            report = interval.measured(number, Cost(1.0, 0.0), float(number), here)
    assert interval.is_never and "no more frequent than checkpoints" in report[0]


@dataclass(frozen=True)
class KilledRun:
    """Run of two processes of one node, killed after a state in memory, beside an uninterrupted one."""

    run_file: Path
    model: Path
    """Model folder of its own."""
    memory: Path
    overrides: str

    @property
    def run_dir(self) -> Path:
        return self.run_file.parent / "runs" / "run"

    def start(self, overrides: str = "", *, is_killed: bool = False) -> None:
        place = {MEMORY_FOLDER: str(self.memory), LOCAL_SIZE: "2"}
        runs = [f"{self.overrides} {overrides}"]
        log = self.run_file.parent / "log"
        metrics = self.run_dir / "metrics.jsonl"
        with forked(2, train_and_record_all, self.run_file, runs, log=log, **place) as started:
            if not is_killed:
                assert started.ends() == [0, 0], started.output
                return
            while not (
                metrics.exists() and any(line["step"] >= 8 for line in lines(self.run_dir, "train"))
            ):
                assert started.are_running(), started.output
            started.kill()


@pytest.fixture(params=["ddp", "fsdp"])
def killed(
    request: pytest.FixtureRequest, run_file: Path, tiny_model: Path, tmp_path: Path
) -> KilledRun:
    memory = tmp_path / "memory"
    memory.mkdir()
    model = shutil.copytree(tiny_model, tmp_path / "model")
    overrides = f"model.init_from={model} parallel.mode={request.param}"
    run = KilledRun(run_file, model, memory, overrides)
    run.start("name=whole train.memory_checkpoint_steps=0")
    run = replace(run, overrides=f"{overrides} train.memory_checkpoint_steps=3")
    run.start(is_killed=True)
    assert sorted(path.name for path in memory.iterdir())[-1] >= "step-00000006"
    assert list((run.run_dir / "checkpoints").iterdir()) == []
    return run


@pytest.mark.long
def test_a_killed_run_continues_bit_for_bit(killed: KilledRun) -> None:
    """It does not read the weights that it started from, which the state replaces."""
    sums = hashlib.sha256((killed.model / SUMS_FILE).read_bytes()).hexdigest()
    (killed.model / "model.safetensors").write_bytes(b"damaged")
    killed.start()
    run_dir = killed.run_dir
    assert losses(run_dir) == losses(run_dir.with_name("whole"))
    resumed = [line for line in lines(run_dir, "event") if line["event"] == "resumed"]
    assert resumed[0]["lost_steps"] <= 6 and resumed[0]["step"] % 3 == 0
    assert any(text.startswith("continues from the state in memory") for text in events(run_dir))
    assert list(killed.memory.iterdir()) == []
    assert json.loads((run_dir / RESULTS_FILE).read_text())["init_from_sha256"] == sums


@pytest.mark.long
def test_without_a_checkpoint_a_damaged_state_starts_the_run_again(killed: KilledRun) -> None:
    for path in killed.memory.glob(f"*/*/{STATE_FILE}"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    killed.start()
    run_dir = killed.run_dir
    assert losses(run_dir) == losses(run_dir.with_name("whole"))
    assert not any(text.startswith("continues from") for text in events(run_dir))
