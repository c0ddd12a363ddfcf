"""Growth of training: planning, resuming, final scores, records of a run, and open files."""

import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa

from benchmarks.growth.row import CPU_SECONDS, GPUS, LINES, PROTEINS, Costs, Row
from seqlm.proteins.alphabet import TOKENS
from seqlm.proteins.model.protein_packs import ProteinSplit, ProteinStream
from seqlm.proteins.pretraining.evaluation import split_counts
from seqlm.runs.run_file import RunFile
from seqlm.training.config import DataConfig
from seqlm.training.data.manifest import Manifest, Settings, ShardFile, Split
from seqlm.training.hashing import below, hash64
from seqlm.training.packing import HostPack, PackShape, PlannedBlock, PlannedPack, Position
from seqlm.training.step import shared_plans
from seqlm.training.step.loader import step_packs
from seqlm.training.step.shared_plans import NodePlans
from seqlm.training.tracking.record_file import drop_after

SEED = 0
SHARD = "a.arrow"
ROWS_PER_BATCH = 100_000
MOST_SHORT = 40
"""Residues of the longest protein of data of millions. Planning takes as long for longer ones."""
MOST_LONG = 576
"""Residues of the longest protein of steps of many packs. Their mean length is that of UniRef50."""
STEP_PROTEINS = 800_000
"""Proteins of the data for these steps, which must last for the steps of 4,096 packs."""
TOKENS_PER_PACK = 16_384
PACK_RESIDUES = 1_022
PROCESSES_PER_NODE = 8
PLANNED_STEPS = 20
"""Steps that are planned. In the first ones of a new process each access to memory is slower."""
LOST_LINES = 100
"""Lines of a record that a resume drops: those since the last checkpoint."""
JOIN_SECONDS = 300
"""Longest wait of processes for each other."""
OPEN_FILES = "open files:"
COUNT_FILES = f"""
import os
from seqlm.training.processes import processes
with processes() as here:
    number = len(os.listdir("/proc/self/fd"))
    counts = here.gather({{here.rank: number}})
    if here.is_first:
        print("{OPEN_FILES}", max(counts.values()))
"""
"""Program of a process that joins the groups of a run."""


def write_split(folder: Path, num_proteins: int, most_residues: int) -> None:
    """Write prepared data with one training split and one equal validation split."""
    folder.mkdir()
    numbers = np.arange(num_proteins)
    lengths = 1 + below(hash64(1, numbers), np.full(num_proteins, most_residues))
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    path = folder / SHARD
    with pa.ipc.new_stream(str(path), pa.schema([("tokens", pa.large_list(pa.uint8()))])) as writer:
        for start in range(0, num_proteins, ROWS_PER_BATCH):
            ends = bounds[start : start + ROWS_PER_BATCH + 1]
            values = pa.array(np.full(ends[-1] - ends[0], 5, np.uint8))
            tokens = pa.LargeListArray.from_arrays(pa.array(ends - ends[0]), values)
            writer.write_batch(pa.record_batch({"tokens": tokens}))
    residues = int(bounds[-1])
    shard = ShardFile(SHARD, num_proteins, residues, path.stat().st_size, "0" * 64)
    split = Split(num_proteins, num_proteins, residues, {}, (shard,))
    empty = Split(0, 0, 0, {}, ())
    Manifest(
        sources=(),
        settings=Settings(SEED, 0.5, 0.0, members=False),
        duplicates_dropped=0,
        splits={"train": split, "validation": split, "test": empty},
        vocabulary=tuple(TOKENS),
    ).save(folder)


def _stream(folder: Path, num_tokens: int) -> ProteinStream:
    split = ProteinSplit(folder, "train")
    return ProteinStream(split, PackShape.of(split, num_tokens, PACK_RESIDUES), SEED)


@dataclass(frozen=True)
class _Planning:
    """Cost of planning in one process."""

    cpu_seconds: float
    num_blocks: int


class _Counting(ProteinStream):
    """Stream that counts the blocks that it plans, and reads no proteins."""

    num_planned = 0
    _padding: HostPack | None = None

    def plan(self, epoch: int, block: int) -> PlannedBlock:
        self.num_planned += 1
        return super().plan(epoch, block)

    def load(self, pack: PlannedPack | None) -> HostPack:
        """Return the same pack of padding each time, because only planning is measured."""
        if self._padding is None:
            self._padding = super().load(None)
        return self._padding


def _resume(num_proteins: int, folder: Path) -> Costs:
    """Open a split and resume in the last block of an epoch, as each process of a run does."""
    data = folder / str(num_proteins)
    write_split(data, num_proteins, MOST_SHORT)
    tracemalloc.start()
    stream = _stream(data, TOKENS_PER_PACK)
    open_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    epoch = takewhile(lambda one: one.block.epoch == 0, stream.ranges())
    [last] = deque(epoch, maxlen=1)
    resumed = _Counting(stream.split, stream.shape, SEED)
    before = time.process_time()
    next(resumed.packs(last.position_after(last.first)))
    return {
        CPU_SECONDS: time.process_time() - before,
        "blocks planned": resumed.num_planned,
        "bytes of an open split": open_bytes,
    }


def _plan(num_gpus: int, folder: Path) -> Costs:
    """Plan steps with a pack per GPU, as the eight processes of one node do.

    All of them plan first, and leave their plans for the others. Then each one plans its share again and
    reads the others' plans, alone on a core as on a node. This second time is measured.
    """
    data = folder / "long"
    if not data.exists():
        write_split(data, STEP_PROTEINS, MOST_LONG)
    split = ProteinSplit(data, "train")
    shape = PackShape.of(split, TOKENS_PER_PACK, PACK_RESIDUES)
    streams = [_Counting(split, shape, SEED) for _ in range(PROCESSES_PER_NODE)]
    plans = shared_plans.folder_in_memory() / f"growth-plans-{os.getpid()}"
    context = get_context("fork")
    results = context.SimpleQueue()

    def take_steps(rank: int) -> None:
        # The first plan of a new process also copies the memory that it shares with its parent.
        ProteinStream.plan(streams[rank], epoch=1, block=0)
        before = time.process_time()
        steps = step_packs(streams[rank], Position(), num_gpus, rank, num_gpus)
        deque(islice(steps, PLANNED_STEPS), maxlen=0)
        cpu_seconds = time.process_time() - before
        results.put(_Planning(cpu_seconds, streams[rank].num_planned))

    def run_together(ranks: Sequence[int]) -> list[_Planning]:
        processes = [context.Process(target=take_steps, args=(rank,)) for rank in ranks]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError("a process that plans failed; its error is above")
        return [results.get() for _ in processes]

    # These processes share few cores, so that they wait longer for each other than those of a node.
    with mock.patch.object(shared_plans, "PATIENCE_SECONDS", JOIN_SECONDS):
        for rank, stream in enumerate(streams):
            stream.shared_plans = NodePlans(plans, rank, PROCESSES_PER_NODE)
        run_together(range(PROCESSES_PER_NODE))
        found: list[_Planning] = []
        for rank in range(PROCESSES_PER_NODE):
            found += run_together([rank])
    num_steps = PLANNED_STEPS * PROCESSES_PER_NODE
    cpu_ms = 1_000 * sum(planning.cpu_seconds for planning in found)
    num_blocks = sum(planning.num_blocks for planning in found)
    return {
        "CPU ms per rank and step": cpu_ms / num_steps,
        "blocks per rank and step": num_blocks / num_steps,
    }


def _scores(num_proteins: int, folder: Path) -> Costs:
    """Count what the final scores of a run file with defaults read of a held-out split."""
    data = folder / str(num_proteins)
    write_split(data, num_proteins, MOST_SHORT)
    config = RunFile(name="growth", data=DataConfig(path=str(data)))
    proteins, residues = split_counts(config, "validation")
    return {"proteins scored": proteins.used, "residues scored": residues.used}


def _record(num_lines: int, folder: Path) -> Costs:
    """Drop the last lines of a run's record, as its resume does."""
    path = folder / f"{num_lines}.jsonl"
    with path.open("w") as stream:
        for step in range(1, num_lines + 1):
            line = {"kind": "train", "step": step, "loss": 2.5, "note": "x" * 200}
            stream.write(json.dumps(line) + "\n")
    before = time.process_time()
    num_dropped = drop_after(path, num_lines - LOST_LINES, is_last=False)
    seconds = time.process_time() - before
    assert num_dropped == LOST_LINES
    path.unlink()
    return {CPU_SECONDS: seconds}


def _open_files(num_processes: int, folder: Path) -> Costs:
    """Start processes that join the groups of a run, and return the most files that one of them has open."""
    program = folder / "count_files.py"
    program.write_text(COUNT_FILES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={num_processes}", str(program)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=JOIN_SECONDS,
    )
    return {"open files": int(done.stdout.rpartition(OPEN_FILES)[2])}


ROWS = (
    Row(
        name="resume",
        title="resuming at the end of an epoch, in each process",
        scale=PROTEINS,
        sizes=(100_000, 1_000_000, 10_000_000),
        measure=_resume,
        unknown="the first read of a block from Lustre",
        expected_seconds=60,
    ),
    Row(
        name="scores",
        title="final scores of a run with default settings",
        scale=PROTEINS,
        sizes=(100_000, 300_000, 1_000_000),
        measure=_scores,
        unknown="rate on a GPU",
        expected_seconds=10,
    ),
    Row(
        name="plan",
        title=f"planning of steps with a pack of {TOKENS_PER_PACK:,} tokens per GPU",
        scale=GPUS,
        sizes=(64, 512, 4_096),
        measure=_plan,
        unknown="processes beside a training on a GPU, which share its cores",
        expected_seconds=60,
    ),
    Row(
        name="open-files",
        title="files that each process of a job opens",
        scale=GPUS,
        sizes=(2, 4, 8),
        measure=_open_files,
        unknown="more than 8 processes; the hard limit of HyperPod's image",
        expected_seconds=60,
    ),
    Row(
        name="record",
        title="dropping the last lines of a run's record at a resume",
        scale=LINES,
        sizes=(10_000, 100_000, 1_000_000),
        measure=_record,
        unknown="appending to the record on Lustre",
        expected_seconds=10,
    ),
)
