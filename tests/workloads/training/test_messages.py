"""The messages of real training steps are those from which ``make plan`` computes scaling."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from seqlm.runs.run_file import RunFile, load_config
from tests.workloads.proteins.tiny_models import save_tiny_model, tiny_config
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.recorded_messages import record_messages
from tests.workloads.training.training_runs import write_run_file
from tools.plan.memory import Layout
from tools.plan.messages import Message, exchange_of, messages, parts_of
from tools.plan.model_size import parameters_of, shape_of

pytestmark = pytest.mark.long

Sent = Counter[tuple[str, str, int]]
"""Number of operations by collective, ranks and bytes."""

NARROW = 64
WIDE = 512
"""Widths of models. A wide one has 34 MB, so that DDP has three buckets. The vocabulary of 33 is padded in
shards."""
LAYERS = 4
BYTES_OF = {"bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class Run:
    num_processes: int
    width: int
    settings: str
    keeps_gradients: bool = False
    """Whether the trainer takes a kernel to be in use that keeps gradients. On a CPU none is selected."""


FSDP = "parallel.mode=fsdp train.precision=bf16"
RUNS = {
    "flat": Run(2, WIDE, "train.precision=fp32", keeps_gradients=True),
    "buckets": Run(2, WIDE, "train.kernels=off train.precision=fp32"),
    "fsdp": Run(2, NARROW, FSDP),
    "fsdp-fp32": Run(2, NARROW, "parallel.mode=fsdp train.precision=fp32"),
    "fsdp-recomputing": Run(2, NARROW, f"{FSDP} train.activation_checkpointing=true"),
    "hsdp": Run(4, NARROW, f"{FSDP} parallel.shard_size=2"),
}


def expected(config: RunFile, run: Run) -> list[Message]:
    shape = shape_of(config)
    layout = Layout(
        config,
        shape,
        parameters_of(config, shape),
        run.num_processes,
        number_bytes=BYTES_OF[config.train.precision],
    )
    exchange = exchange_of(layout)
    if run.keeps_gradients:  # the plan expects that of bf16 alone, which is slow on this processor
        exchange = replace(exchange, reduction="flat")
    return messages(parts_of(layout), exchange)


def counted(sent: list[Message], ranks_of: dict[str, list[int]]) -> Sent:
    found: Sent = Counter()
    for one in sent:
        found[one.collective, str(ranks_of[one.members]), one.num_bytes] += one.count
    return found


def recorded(path: Path) -> Sent:
    found: Sent = Counter()
    for collective, ranks, num_bytes in json.loads(path.read_text()):
        found[collective, str(ranks), num_bytes] += 1
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_step_sends_what_the_plan_expects(name: str, prepared: Path, tmp_path: Path) -> None:
    """Each process sends the expected number of messages of each size to the expected processes."""
    run = RUNS[name]
    world_size = run.num_processes
    model = save_tiny_model(tmp_path / "model", tiny_config(LAYERS, run.width))
    run_file = write_run_file(tmp_path, prepared, model)
    # A logged step also sends the times of all processes.
    settings = f"{run.settings} train.log_every_steps=100"
    config = load_config(run_file, settings.split())
    log = tmp_path / "processes.log"
    target = partial(record_messages, keeps_gradients=run.keeps_gradients)
    with forked(world_size, target, run_file, settings, log=log) as started:
        assert started.ends(300) == [0] * world_size, started.output
    sent = expected(config, run)
    shards = config.parallel.shard_size or world_size
    everybody = list(range(world_size))
    for rank in everybody:
        first = rank - rank % shards
        ranks_of = {
            "all": everybody,
            "shards": everybody[first : first + shards],
            "replicas": everybody[rank % shards :: shards],
        }
        plan = counted(sent, ranks_of)
        found = recorded(config.run_dir / f"messages-{rank}.json")
        assert found == plan, (found - plan, plan - found)
