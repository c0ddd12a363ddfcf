"""Cost of states in memory on the test cluster, with a state of 2 GB: of the copies, and of two failures.

``python -m pytest tests/cluster/memory_costs.py -s`` takes ten minutes on two cores and 17 GB of
memory; it needs root. Its name keeps it out of ``make test-cluster``: it measures.

A process is killed in the last step before the next state is due, which costs the most steps. Then a node is
destroyed. The steps that are repeated must have the same losses again. States are more frequent than with the
default, so that the test is short. It prints the default that follows from the measured cost.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from seqlm.training.memory.interval import MAX_BLOCKED_SHARE
from tests.cluster.cluster import Cluster
from tests.cluster.failure_costs import Training
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
STEPS = 5
"""Steps between two states."""
FEW_STEPS = 2
"""Steps between the two failures."""
OVERRIDES = (
    f"model.init_from={HOME}/wide",
    "model.max_residues=30",
    "parallel.mode=fsdp",
    "optim.schedule=constant",
    "train.tokens_per_pack=32",
    "train.tokens_per_step=64",
    "train.max_steps=1000000",
    "train.save_every_steps=1000000",
    f"train.memory_checkpoint_steps={STEPS}",
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
    (blocked,) = map(float, re.findall(r"blocks training for ([0-9.]+) s", report))
    print(f"the default is at least {blocked / MAX_BLOCKED_SHARE:.0f} s", flush=True)
    training.wait_for(training.last_step() // STEPS * STEPS + STEPS - 1)
    for node in nodes_of(cluster, training.job):
        folder = f"/dev/shm/seqlm-{UID}-{training.job}"
        used = node.run(["du", "--bytes", "--summarize", folder]).output.split()[0]
        print(f"{node.hostname}: {int(used) / 1e9:.2f} GB in {folder}", flush=True)
        # Each of two nodes has its own half and a copy of the other one.
        assert int(used) >= STATE_BYTES
    before: Losses = {}

    def kill() -> float:
        began = training.kill_process()
        before.update(losses(home / "runs" / RUN))
        return began

    killed = training.failed("a process is killed", kill, STEPS)
    assert killed.lost_steps <= STEPS
    state = training.events("resumed")[-1]["step"]
    for repeated, cause in ((FEW_STEPS, None), (killed.lost_steps, training.destroy_node)):
        if cause is not None:
            assert training.failed("a node is destroyed", cause, STEPS).lost_steps >= FEW_STEPS
        assert training.events("resumed")[-1]["step"] == state
        training.wait_for(state + repeated)
        found = losses(home / "runs" / RUN)
        numbers = range(state + 1, state + repeated + 1)
        assert [found[step] for step in numbers] == [before[step] for step in numbers]
        print(f"the losses of {repeated} repeated steps are the same", flush=True)
    print("\n".join(training.events_like("continues from the state in memory")))
    # It would save a checkpoint at its end, for which the memory does not suffice.
    cluster.controller.run(["scancel", "--full", "--signal=KILL", training.job])
    for machine in cluster.machines:
        cluster.kill(machine)  # frees the memory
