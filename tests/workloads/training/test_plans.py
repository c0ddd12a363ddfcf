"""Plans of many packs: the same as ever, and each block planned once per node."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from seqlm.proteins.model.protein_packs import ProteinSplit, ProteinStream
from seqlm.training import packing, records
from seqlm.training.hashing import below, hash64
from seqlm.training.packing import PackShape, PlannedBlock, Position, ascending
from seqlm.training.step import shared_plans
from seqlm.training.step.loader import StepPacks, step_packs
from seqlm.training.step.shared_plans import NodePlans, node_plans

NUM_RECORDS = 40_000
NUM_PROCESSES = 8
"""Processes of a node in these tests."""
DIGESTS = {
    # Computed with the version before plans were shared.
    False: "8e84a73761a4eb430037eacecb8ad26aa443a44aec1ac994309cc5defe1b46d2",
    True: "dd6a9b823ab1740a62b08da3e502c1be339d09bd0f68fc6e775fb722341eb9a2",
}
"""SHA-256 of the plans of a split, by whether its units are clusters."""

Opened = Callable[[bool], ProteinSplit]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Return a function that opens a split of records, or of clusters of 1 to 3 records."""

    def open_split(has_clusters: bool) -> ProteinSplit:
        numbers = np.arange(NUM_RECORDS)
        lengths = 1 + below(hash64(1, numbers), np.full(NUM_RECORDS, 400))
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        values = pa.array(np.full(bounds[-1], 5, np.uint8))
        columns = {"tokens": pa.LargeListArray.from_arrays(pa.array(bounds), values)}
        if has_clusters:
            columns["cluster_size"] = pa.array(np.resize([1, 2, 0, 3, 0, 0], NUM_RECORDS))
        batch = pa.record_batch(columns)
        path = tmp_path / "a.arrow"
        with pa.ipc.new_stream(str(path), batch.schema) as writer:
            # Blocks of units cross the bounds of batches.
            for start in range(0, NUM_RECORDS, 9_000):
                writer.write_batch(batch.slice(start, 9_000))
        shards = [SimpleNamespace(file=path.name)]
        summary = SimpleNamespace(records=NUM_RECORDS, residues=int(bounds[-1]), shards=shards)
        manifest = SimpleNamespace(splits={"train": summary})
        monkeypatch.setattr(records.Manifest, "load", lambda folder: manifest)
        return ProteinSplit(tmp_path, "train")

    return open_split


def stream_of(split: ProteinSplit) -> ProteinStream:
    return ProteinStream(split, PackShape.of(split, 2_048, 254), 3)


@pytest.mark.parametrize("has_clusters", [False, True])
def test_plans_are_those_of_earlier_versions(has_clusters: bool, opened: Opened) -> None:
    """A run that is resumed with this version continues with the same packs."""
    stream = stream_of(opened(has_clusters))
    digest = hashlib.sha256()
    for pack, position in islice(stream.packs(Position(0, 100)), 5_000):
        for array in (pack.units, np.array(pack.places), pack.starts, pack.lengths):
            digest.update(array.astype(np.int64).tobytes())
        digest.update(f"{position.epoch} {position.pack}".encode())
    assert digest.hexdigest() == DIGESTS[has_clusters]


def test_equal_hashes_keep_their_order() -> None:
    hashes = np.array([3, 1, 3, 1, 2] * 50, np.uint64)
    assert ascending(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


def steps_of(
    stream: ProteinStream, rank: int, num_steps: int, packs_per_step: int
) -> list[StepPacks]:
    steps = step_packs(stream, Position(0, 9), packs_per_step, rank, NUM_PROCESSES)
    return list(islice(steps, num_steps))


def are_equal(a: StepPacks, b: StepPacks) -> bool:
    packs = zip(a.packs, b.packs, strict=True)
    return (a.num_records, a.num_record_tokens, a.num_attended_pairs, a.after) == (
        b.num_records,
        b.num_record_tokens,
        b.num_attended_pairs,
        b.after,
    ) and all(np.array_equal(one.keys, other.keys) for one, other in packs)


def test_processes_of_a_node_plan_each_block_once(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "BLOCK_UNITS", 512)
    monkeypatch.setattr(shared_plans, "BLOCK_UNITS", 512)
    monkeypatch.setattr(shared_plans, "PATIENCE_SECONDS", 60.0)
    split = opened(False)
    planned: Counter[int] = Counter()

    class Counting(ProteinStream):
        def plan(self, epoch: int, block: int) -> PlannedBlock:
            planned[block] += 1
            return super().plan(epoch, block)

    def read(rank: int) -> list[StepPacks]:
        stream = Counting(split, PackShape.of(split, 2_048, 254), 3)
        stream.shared_plans = NodePlans(tmp_path / "plans", rank, NUM_PROCESSES)
        return steps_of(stream, rank, num_steps=6, packs_per_step=400)

    with ThreadPoolExecutor(NUM_PROCESSES) as pool:
        found = list(pool.map(read, range(NUM_PROCESSES)))
    assert len(planned) > 5 * NUM_PROCESSES
    assert set(planned.values()) == {1}
    for rank in (0, 5):
        alone = steps_of(stream_of(split), rank, num_steps=6, packs_per_step=400)
        assert all(map(are_equal, found[rank], alone))


def test_plans_that_do_not_appear_are_made_here(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "BLOCK_UNITS", 512)
    monkeypatch.setattr(shared_plans, "BLOCK_UNITS", 512)
    monkeypatch.setattr(shared_plans, "PATIENCE_SECONDS", 0.001)
    monkeypatch.setattr(shared_plans, "KEPT_PLANS", 2)
    stream = stream_of(opened(False))
    alone = steps_of(stream, 1, num_steps=3, packs_per_step=400)
    folder = tmp_path / "plans"
    stream.shared_plans = NodePlans(folder, 1, NUM_PROCESSES)
    assert all(map(are_equal, steps_of(stream, 1, 3, packs_per_step=400), alone))
    assert len(list(folder.iterdir())) == 2, "old plans are removed"
    stream.shared_plans = None
    assert not folder.exists()


def test_a_full_memory_is_no_error(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError("no space left")

    stream = stream_of(opened(False))
    shared = NodePlans(tmp_path / "plans", 0, NUM_PROCESSES)
    monkeypatch.setattr(Path, "write_bytes", full)
    plan = shared.planned(stream, 0, [1, 0], 0)
    assert np.array_equal(plan.members, stream.plan(0, 1).members)


def test_a_folder_that_cannot_be_written_is_no_error(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, **named: object) -> None:
        raise PermissionError(13, "read-only")

    monkeypatch.setattr(shared_plans, "IN_MEMORY", tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(Path, "mkdir", refused)
    here = SimpleNamespace(world_size=4_096, is_first=True, gather=lambda mine: mine)
    assert node_plans(stream_of(opened(False)), 4_096, here) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("packs_per_step", "is_shared"), [(100, False), (4_096, True)])
def test_only_large_steps_are_shared(
    packs_per_step: int,
    is_shared: bool,
    opened: Opened,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_plans, "IN_MEMORY", tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "0")
    abandoned = tmp_path / "seqlm-plans-999999999-00ff"
    other = tmp_path / "seqlm-plans-of-mine"
    running = tmp_path / f"seqlm-plans-{os.getpid()}-00ff"
    for folder in (abandoned, other, running):
        folder.mkdir()
    here = SimpleNamespace(world_size=4_096, is_first=True, gather=lambda mine: mine)
    plans = node_plans(stream_of(opened(False)), packs_per_step, here)  # type: ignore[arg-type]
    assert (plans is not None) == is_shared
    left = {folder.name for folder in tmp_path.glob("seqlm-plans-*")}
    if is_shared:
        assert {other.name, running.name} < left and abandoned.name not in left
        assert len(left) == 3
