"""Cost of states in memory on the test cluster, with a state of 2 GB: of the copies, and of two failures.

``python -m pytest tests/cluster/memory_costs.py -s`` takes ten minutes on two cores and 17 GB of
memory; it needs root. Its name keeps it out of ``make test-cluster``: it measures.

The run computes the interval between two states itself. A process is killed in the last step before the next
state is due, which costs the most steps. Then a node is destroyed. The steps that are repeated must have the
same losses again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.failure_costs import Cost, Training
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until
from tests.cluster.training import GID, HOME, PYTHON, UID, nodes_of
from tests.workloads.proteins.tiny_models import save_tiny_model, tiny_config
from tests.workloads.training.training_runs import Losses, losses

RUN = "remembered-2gb"
WIDTH = 1536
LAYERS = 6
"""Shape of 172 M parameters. Weights in fp32 and two moments of AdamW take 12 bytes each."""
STATE_BYTES = 2e9
TUNABLES = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1048576"
"""Variable of the processes. Layers come and go. With small pages, their faults would take half of a step on
CPUs, and with the default threshold, a part of their memory would not be returned."""
NEW_STEPS = 2
"""Steps between the two failures besides those that the first one repeats."""
OVERRIDES = (
    f"model.init_from={HOME}/wide",
    "model.max_residues=30",
    "parallel.mode=fsdp",
    "optim.schedule=constant",
    "train.tokens_per_pack=32",
    "train.tokens_per_step=64",
    "train.max_steps=1000000",
    "train.save_every_steps=1000000",
    "train.memory_checkpoint_steps=null",
    "evaluate.packs=1",
    "--hang-seconds=300",
    f"--python={HOME}/large-pages",
)
"""Large state, and short steps."""


@pytest.fixture(scope="module")
def wide(home: Path) -> Path:
    """Folder of the model."""
    python = home / "large-pages"
    python.write_text(PYTHON.replace("OMP_NUM_THREADS", f"{TUNABLES} OMP_NUM_THREADS"))
    python.chmod(0o755)
    config = tiny_config(LAYERS, WIDTH)
    config.intermediate_size = 4 * WIDTH
    config.num_attention_heads = WIDTH // 64
    folder = save_tiny_model(home / "wide", config)
    for path in (folder, *folder.iterdir()):
        os.chown(path, UID, GID)
    return folder


@pytest.mark.timeout(3600)
def test_memory_costs(cluster: Cluster, lifecycle: Lifecycle, home: Path, wide: Path) -> None:
    training = Training(cluster, home, RUN, *OVERRIDES)
    wait_until(lambda: training.events_like("states in memory: "), f"{training.log}", seconds=1200)
    (report,) = training.events_like("states in memory: ")
    print(report, flush=True)
    (interval,) = map(int, re.findall(r"every ([0-9]+) steps", report))
    training.wait_for(training.last_step() // interval * interval + 2 * interval - 1)
    for node in nodes_of(cluster, training.job):
        folder = f"/dev/shm/seqlm-{UID}-{training.job}"
        used = node.run(["du", "--bytes", "--summarize", folder]).output.split()[0]
        print(f"{node.hostname}: {int(used) / 1e9:.2f} GB in {folder}", flush=True)
        # Each of two nodes has its own half and a copy of the other one.
        assert int(used) >= STATE_BYTES
    run_dir = home / "runs" / RUN
    killed = _repeated(training, run_dir, "a process is killed", training.kill_process, interval)
    assert killed.lost_steps <= interval
    training.wait_for(training.last_step() + NEW_STEPS)
    _repeated(training, run_dir, "a node is destroyed", training.destroy_node, interval)
    print("\n".join(training.events_like("continues from the state in memory")))
    # It would save a checkpoint at its end, for which the memory does not suffice.
    cluster.controller.run(["scancel", "--full", "--signal=KILL", training.job])
    for machine in cluster.machines:
        cluster.kill(machine)  # frees the memory


def _repeated(
    training: Training, run_dir: Path, failure: str, cause: Callable[[], float], interval: int
) -> Cost:
    """Let the training fail, and compare the losses of the steps that it repeats."""
    before: Losses = {}

    def fail() -> float:
        began = cause()
        before.update(losses(run_dir))
        return began

    cost = training.failed(failure, fail, interval)
    state = training.events("resumed")[-1]["step"]
    numbers = range(state + 1, state + cost.lost_steps + 1)
    assert numbers, "the failure came right after a state, so that it proves nothing"
    training.wait_for(numbers[-1])
    found = losses(run_dir)
    assert [found[step] for step in numbers] == [before[step] for step in numbers]
    print(f"the losses of {cost.lost_steps} repeated steps are the same", flush=True)
    return cost
