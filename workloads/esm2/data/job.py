"""What the stages of one preparation share: processes, limits, folders, progress, and how files are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from workloads.esm2.data.fasta import Block, SourceReader
from workloads.esm2.data.limits import Limits
from workloads.esm2.data.manifest import SourceFile
from workloads.esm2.data.pool import run_in_order
from workloads.esm2.data.spill import Run, row_bytes

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    pool: Executor
    workers: int
    limits: Limits
    folder: Path
    """Where the result is made."""
    seed: int
    progress: bool
    bars: ExitStack
    """Closes all progress bars before an error is printed, also those of suspended generators."""
    sources: list[SourceFile] = field(default_factory=list)
    """Grows by every file that was read to its end."""

    @property
    def spill(self) -> Path:
        return self.folder / "spill"

    def run(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """Results in the order of the tasks; one task waits per worker, the rest is not made yet."""
        return run_in_order(self.pool, function, tasks, self.workers + 1)

    def read(self, path: Path, name: str, separator: bytes) -> Iterator[tuple[bool, Block]]:
        """Blocks of a file, the first one marked, with a progress bar over its bytes."""
        size = path.stat().st_size
        with self.bar(f"reading {path.name}", size, "B") as bar:

            def advance(count: int) -> None:
                bar.update(count)

            reader = SourceReader(path, on_bytes=advance)
            try:
                first = True
                for block in reader.blocks(separator, self.limits.block_bytes, self.limits.record_bytes):
                    yield first, block
                    first = False
            finally:
                reader.close()
        self.sources.append(SourceFile(name, size, reader.sha256))

    def bar(self, description: str, total: int, unit: str) -> tqdm:  # type: ignore[type-arg]
        bar = tqdm(total=total, unit=unit, unit_scale=True, desc=description, disable=not self.progress)
        return self.bars.enter_context(bar)


@dataclass
class Spilled:
    """What a stage wrote for the next one; of one task, and by addition of all."""

    runs: list[Run] = field(default_factory=list)
    id_runs: list[Run] = field(default_factory=list)
    """The ids by themselves, to find repeated ones."""
    records: int = 0
    num_bytes: int = 0
    """Of all records, dropped duplicates included: so that it does not depend on how blocks were cut."""
    duplicates_dropped: int = 0

    def add(self, other: Spilled) -> None:
        self.runs += other.runs
        self.id_runs += other.id_runs
        self.records += other.records
        self.num_bytes += other.num_bytes
        self.duplicates_dropped += other.duplicates_dropped

    def count(self, *columns: list[bytes]) -> None:
        """Add records, given as the columns of their rows."""
        self.records += len(columns[0])
        self.num_bytes += row_bytes(len(columns)) * len(columns[0])
        self.num_bytes += sum(sum(map(len, column)) for column in columns)
