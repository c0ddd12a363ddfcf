"""Shared parts of the stages of a preparation: processes, limits, folders, progress, reading of files.

Worker processes end with their parent, and results of tasks come back in order.
"""

import collections
import ctypes
import dataclasses
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from tqdm import tqdm

from seqlm.training.command_line import RunError, escaped
from seqlm.training.data.limits import Limits
from seqlm.training.data.manifest import Settings, SourceFile
from seqlm.training.data.merged_runs import finished_files, groups_to_merge, merge
from seqlm.training.data.spill import Run, row_bytes

from .blocks import AnyBlock
from .collected_rejects import Found
from .fasta import Block, SourceReader
from .inputs import ProteinInput
from .plausibility import Implausible

_M_MMAP_THRESHOLD = -3
"""Option of ``mallopt``: size from which blocks are mapped by themselves (malloc.h of glibc)."""
_MAPPED_BYTES = 1 << 20

Result = TypeVar("Result")


@dataclass(frozen=True)
class Plan:
    """Settings that every task of a preparation needs."""

    folder: Path
    """Folder in which the result is written."""
    limits: Limits
    settings: Settings
    allow_nucleotides: bool
    """Whether DNA and RNA are taken for proteins."""

    attempt: int = 1
    """Number of times that the files were read; more than once only if ids are repeated."""

    @property
    def spill(self) -> Path:
        """Folder of temporary files. Each attempt has its own, because workers keep lists of the files."""
        return self.folder / ("spill" if self.attempt == 1 else f"spill-{self.attempt}")


@dataclass
class Job:
    """Processes of a preparation, and what they report."""

    plan: Plan
    pool: Executor
    workers: int
    progress: bool
    """Whether progress bars are shown."""
    bars: ExitStack
    """Closes all progress bars before an error is printed, also those of suspended generators."""
    sources: list[SourceFile] = field(default_factory=list)
    """Files that were read to their ends so far."""

    def start_again(self) -> None:
        """Forget what was read, and spill into another folder."""
        self.plan = dataclasses.replace(self.plan, attempt=self.plan.attempt + 1)
        self.sources.clear()

    def run(
        self, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]
    ) -> Iterator[Result]:
        """Yield the results of ``function(plan, *task)`` in the order of the tasks.

        One task waits per worker; the rest is not created yet. Because of the order, the error that is raised
        is the first one of the input, whatever the timing.
        """
        pending: collections.deque[Future[Result]] = collections.deque()
        try:
            for task in tasks:
                pending.append(self.pool.submit(function, self.plan, *task))
                while len(pending) > self.workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise RunError(
                "a worker process was killed from outside, most often for lack of memory; "
                "free memory or give fewer workers, then run again"
            ) from None

    def read(self, path: Path, name: str, separator: bytes) -> Iterator[tuple[Block, bool]]:
        """Yield the blocks of a file, and whether each is the first one, with a progress bar over its bytes.

        Args:
            path: file.
            name: name of the file in the manifest.
            separator: newline with the bytes that begin a record or line.
        """
        size = path.stat().st_size
        limits = self.plan.limits
        with (
            self.bar(f"reading {escaped(path.name)}", size, "B") as bar,
            closing(SourceReader(path, on_bytes=bar.update)) as reader,
        ):
            for number, block in enumerate(
                reader.blocks(separator, limits.block_bytes, limits.record_bytes)
            ):
                yield block, number == 0
        self.sources.append(SourceFile(name, size, reader.sha256))

    def records(self, inputs: Sequence[ProteinInput]) -> Iterator[tuple[int, AnyBlock, bool]]:
        """Yield the blocks of files of proteins, with one progress bar over the bytes of all.

        Yields:
            Number of the file, block, and whether it is the first one of its file.
        """
        numbers = itertools.count(1)  # ids for the rows of tables without a column of ids
        sizes = [source.path.stat().st_size for source in inputs]
        is_one = len(inputs) == 1
        title = escaped(inputs[0].path.name) if is_one else f"{len(inputs):,} files"
        with self.bar(f"reading {title}", sum(sizes), "B") as bar:
            for number, (source, size) in enumerate(zip(inputs, sizes, strict=True)):
                with closing(source.reader(numbers, on_bytes=bar.update)) as reader:
                    for index, block in enumerate(reader.blocks(self.plan.limits)):
                        yield number, block, index == 0
                self.sources.append(SourceFile(source.name, size, reader.sha256()))

    def merged(self, kind: str, runs: list[Run], num_ranges: int) -> list[Run]:
        """Return the runs, merged to larger ones if they are many and small.

        Args:
            kind: beginning of the name of the merged files.
            runs: runs of one kind. The files of merged ones are deleted.
            num_ranges: number of key ranges in which they will be gathered.
        """
        groups = groups_to_merge(runs, num_ranges)
        if not groups:
            return runs
        found: list[Run] = []
        with self.bar("merging runs", len(groups), "run") as bar:
            merged = self.run(_merge, ((kind, group) for group in groups))
            for run, files in zip(merged, finished_files(groups), strict=True):
                found.append(run)
                for file in files:
                    Path(file).unlink()
                bar.update()
        return found

    def bar(self, description: str, total: int, unit: str) -> tqdm:  # type: ignore[type-arg]
        bar = tqdm(
            total=total, unit=unit, unit_scale=True, desc=description, disable=not self.progress
        )
        return self.bars.enter_context(bar)


def _merge(plan: Plan, kind: str, runs: list[Run]) -> Run:
    """Write several runs as one."""
    return merge(plan.spill, kind, runs, plan.limits.piece_bytes)


@dataclass
class Spilled:
    """Output of a stage for the next one, of one task or, added up, of all tasks."""

    runs: list[Run] = field(default_factory=list)
    id_runs: list[Run] = field(default_factory=list)
    """Runs of the ids alone, to find repeated ids."""
    records: int = 0
    num_bytes: int = 0
    """Bytes of all records, dropped duplicates included, so that the sum does not depend on the blocks."""
    duplicates_dropped: int = 0
    num_split: int = 0
    """Number of records with several chains, each of which became a record."""
    implausible: Implausible = field(default_factory=Implausible)
    found: Found = field(default_factory=Found)
    """Records by file, and the bad ones."""

    def add(self, other: "Spilled") -> None:
        """Add the output of a later task."""
        self.runs += other.runs
        self.id_runs += other.id_runs
        self.records += other.records
        self.num_bytes += other.num_bytes
        self.duplicates_dropped += other.duplicates_dropped
        self.num_split += other.num_split
        self.implausible += other.implausible
        self.found.add(other.found)

    def count(self, *columns: list[bytes]) -> None:
        """Add records, given as the columns of their rows."""
        self.records += len(columns[0])
        self.num_bytes += row_bytes(len(columns)) * len(columns[0])
        self.num_bytes += sum(sum(map(len, column)) for column in columns)


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor]:
    """Start ``workers`` processes, or a thread for a single worker; an error drops the queued tasks."""
    pool: Executor
    if workers == 1:
        pool = ThreadPoolExecutor(1)
    else:
        # Forked from a server that has imported Arrow and numpy but runs no threads: workers share those
        # pages, which spawned ones would each load for themselves (about 60 MiB), and start in milliseconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["seqlm.proteins.data.shards", "seqlm.proteins.data.scatter"]
        )
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and end when the parent is gone, which cannot say so if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Allocators keep freed blocks for later, per process: over eight of them some 500 MiB. Have large ones
    # mapped and unmapped instead, by numpy and Python (through glibc) as well as by Arrow.
    pa.set_memory_pool(pa.system_memory_pool())
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
