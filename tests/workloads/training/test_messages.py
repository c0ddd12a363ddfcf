"""The messages of real training steps are those from which ``make plan`` computes scaling."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from seqlm.runs.run_file import RunFile, load_config
from tests.workloads.proteins.tiny_models import save_tiny_model, tiny_config
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.recorded_messages import RECORDED_STEP, train_and_record_messages
from tests.workloads.training.training_runs import write_run_file
from tools.plan.memory import Layout
from tools.plan.messages import Message, exchange_of, messages, parts_of
from tools.plan.model_size import parameters_of, shape_of

pytestmark = pytest.mark.long

Sent = Counter[tuple[str, str, int]]
"""Number of operations by collective, ranks and bytes."""

LAYERS, WIDTH = 4, 512
"""A model of 34 MB, so that DDP has three buckets. Its vocabulary of 33 is padded in shards."""
BYTES_OF = {"bf16": 2, "fp32": 4}
RUNS = {
    "buckets": (2, "train.kernels=off train.precision=bf16", ()),
    "fsdp": (2, "parallel.mode=fsdp train.precision=bf16", ()),
    "fsdp-fp32": (2, "parallel.mode=fsdp train.precision=fp32", ()),
    "fsdp-recomputing": (
        2,
        "parallel.mode=fsdp train.precision=bf16 train.activation_checkpointing=true",
        (),
    ),
    "hsdp": (4, "parallel.mode=fsdp parallel.shard_size=2 train.precision=bf16", ()),
}
"""Number of processes, settings, and kernels that the trainer takes to be in use."""


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide") / "model"
    return save_tiny_model(folder, tiny_config(LAYERS, WIDTH))


def expected(config: RunFile, world_size: int) -> list[Message]:
    shape = shape_of(config)
    layout = Layout(
        config,
        shape,
        parameters_of(config, shape),
        world_size,
        number_bytes=BYTES_OF[config.train.precision],
    )
    return messages(parts_of(layout), exchange_of(layout))


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
def test_a_step_sends_what_the_plan_expects(
    name: str, prepared: Path, wide_model: Path, tmp_path: Path
) -> None:
    """Each process sends the expected number of messages of each size to the expected processes."""
    world_size, settings, kernels = RUNS[name]
    run_file = write_run_file(tmp_path, prepared, wide_model)
    overrides = f"{settings} train.max_steps={RECORDED_STEP + 1}"
    config = load_config(run_file, overrides.split())
    with forked(
        world_size,
        train_and_record_messages,
        run_file,
        overrides,
        kernels,
        log=tmp_path / "processes.log",
    ) as started:
        assert started.ends(300) == [0] * world_size, started.output
    sent = expected(config, world_size)
    shards = config.parallel.shard_size or world_size
    everybody = list(range(world_size))
    for rank in everybody:
        first = rank - rank % shards
        ranks_of = {
            "all": everybody,
            "hosts": everybody,
            "shards": everybody[first : first + shards],
            "replicas": everybody[rank % shards :: shards],
        }
        plan = counted(sent, ranks_of)
        found = recorded(config.run_dir / f"messages-{rank}.json")
        assert found == plan, (found - plan, plan - found)
