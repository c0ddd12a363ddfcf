"""Data preparation beside transformers' tokenizer and the AWS guidance's two scripts, per core-second.

``python -m benchmarks.data [--fasta FILE ...] [--repeat N] [--json OUT]``

The input is the given proteins made into the shape of UniRef50: headers of its form, proteins cut so
that the mean length is near its 288 residues; with ``--repeat``, copies that differ. Contestants take turns,
several rounds; the table holds medians. A core-second is a second of CPU time of a process and all its
descendants, start-up and imports included for ours (a process of its own), excluded for the others.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import functools
import gzip
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from transformers import EsmTokenizer

from workloads.esm2.alphabet import TOKENS, encode
from workloads.esm2.command_line import one_line_if_missing
from workloads.esm2.data.limits import MAX_WORKERS, default_workers
from workloads.esm2.data.sources import SAMPLE
from workloads.esm2.hardware import cpu_name

# 69.5 million proteins of 288 residues on average.
UNIREF50_RESIDUES = 20e9
MAX_PIECE_RESIDUES = 400
GUIDANCE_LENGTH = 512
# The slow contestants get this many proteins, about five seconds' work.
SUBSET_PROTEINS = 10_000
TARGETS = {"look-up over EsmTokenizer": 200, "ours over the guidance's scripts": 40}

PREPARE = """
import sys, time
from pathlib import Path
from workloads.esm2.data.prepare import prepare
if __name__ == "__main__":
    source, out, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    fractions = dict(validation_fraction=0.01, test_fraction=0.01)
    prepare([source], out, seed=0, workers=workers, progress=False, **fractions)
    print(time.process_time())
"""


@dataclass(frozen=True)
class Timing:
    residues: int
    core_seconds: float
    wall_seconds: float
    parent_core_seconds: float = 0.0
    """Of the one process that reads and decompresses: the part that more cores do not shorten."""

    @property
    def speed(self) -> float:
        return self.residues / self.core_seconds


def fasta_rows(path: Path) -> Iterable[tuple[str, str]]:
    """Return (header, sequence) of every record, by the reader of the guidance's first script."""
    import pyfastx

    rows: Iterable[tuple[str, str]] = pyfastx.Fasta(str(path), build_index=False)
    return rows


def uniref50_shaped(fastas: list[Path], repeat: int) -> Iterator[tuple[str, str]]:
    """(header, sequence) of proteins cut to pieces, each copy rotated by another amount."""
    for copy in range(repeat):
        for path in fastas:
            for name, sequence in fasta_rows(path):
                pieces = -(-len(sequence) // MAX_PIECE_RESIDUES)
                size = -(-len(sequence) // pieces)
                rotated = sequence[copy:] + sequence[:copy]
                for number in range(pieces):
                    key = f"{name.split()[0]}{number}{copy:03d}"
                    yield (
                        f"UniRef50_{key} Uncharacterized protein n=1 Tax=Triplophysa tibetana "
                        f"TaxID=1572043 RepID={key}_9TELE",
                        rotated[number * size : (number + 1) * size],
                    )


def write_input(fastas: list[Path], repeat: int, path: Path, limit: int | None = None) -> int:
    """Write the shaped proteins as FASTA.gz of 60 residues a line; the number of residues."""
    residues = 0
    with gzip.open(path, "wt", compresslevel=6) as file:
        for number, (header, sequence) in enumerate(uniref50_shaped(fastas, repeat)):
            if number == limit:
                break
            lines = "\n".join(sequence[start : start + 60] for start in range(0, len(sequence), 60))
            file.write(f">{header}\n{lines}\n")
            residues += len(sequence)
    return residues


def timed(residues: int, work: Callable[[], object]) -> Timing:
    wall, cpu = time.perf_counter(), _core_seconds()
    work()
    return Timing(residues, _core_seconds() - cpu, time.perf_counter() - wall)


def _core_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def fasta_to_csv(fasta: Path, folder: Path) -> None:
    """First script of the guidance: pyfastx, all rows in memory, shuffled, to CSV."""
    rows = list(fasta_rows(fasta))
    random.Random(0).shuffle(rows)
    with (folder / "x000.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows((name.split()[0], sequence) for name, sequence in rows)


def tokenize_csv(folder: Path, tokenizer: EsmTokenizer) -> None:
    """Second script of the guidance: CSV through the tokenizer, every row padded to 512, to Arrow."""
    import datasets

    rows = datasets.load_dataset(
        "csv", data_files=[str(folder / "x000.csv")], cache_dir=str(folder / "cache"), split="train"
    )
    tokenized = rows.map(
        lambda batch: tokenizer(
            batch["text"],
            padding="max_length",
            truncation=True,
            max_length=GUIDANCE_LENGTH,
            return_special_tokens_mask=True,
        ),
        batched=True,
        remove_columns=["id", "text"],
    )
    tokenized.save_to_disk(str(folder / "arrow"))


def run_prepare(source: Path, out: Path, workers: int, residues: int) -> Timing:
    """Prepare in a process of its own, whose descendants are waited for here."""
    shutil.rmtree(out, ignore_errors=True)
    wall, cpu = time.perf_counter(), _core_seconds()
    command = [sys.executable, "-c", PREPARE, str(source), str(out), str(workers)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    elapsed = time.perf_counter() - wall
    # The workers are children of a fork server, which outlives the run for a moment.
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
    return Timing(residues, _core_seconds() - cpu, elapsed, float(printed))


def peak_memory_mib(work: Callable[[], object]) -> float:
    """Largest sum of proportional set sizes of all descendants while ``work`` runs, sampled."""
    peak, finished = 0, threading.Event()

    def sample() -> None:
        nonlocal peak
        while not finished.wait(0.02):
            peak = max(peak, sum(map(_proportional_kib, _descendants())))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        work()
    finally:
        finished.set()
        sampler.join()
    return peak / 1024


def _descendants() -> set[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def _proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def compare(fastas: list[Path], repeat: int, rounds: int, folder: Path) -> dict[str, list[Timing]]:
    """Timings of every contestant, taking turns."""
    whole, subset = folder / "whole.fasta.gz", folder / "subset.fasta.gz"
    residues = write_input(fastas, repeat, whole)
    subset_residues = write_input(fastas, 1, subset, SUBSET_PROTEINS)
    sequences = [sequence for _, sequence in fasta_rows(subset)]
    (folder / "vocab.txt").write_text("\n".join(TOKENS))
    tokenizer = EsmTokenizer(str(folder / "vocab.txt"))
    import datasets  # before the clock runs

    datasets.disable_progress_bars()
    cores = default_workers()
    csv_folder = folder / "csv"
    # A sub-second contestant is repeated, or the clock's grain would show.
    contestants: dict[str, Callable[[], Timing]] = {
        "EsmTokenizer": lambda: timed(
            subset_residues, lambda: tokenizer(sequences, add_special_tokens=False)
        ),
        "our look-up": lambda: timed(
            20 * subset_residues, lambda: [encode(text) for _ in range(20) for text in sequences]
        ),
        "guidance 1: pyfastx to CSV": lambda: timed(
            subset_residues, lambda: fasta_to_csv(subset, csv_folder)
        ),
        "guidance 2: CSV to padded Arrow": lambda: timed(
            subset_residues, lambda: tokenize_csv(csv_folder, tokenizer)
        ),
        "ours end to end, 1 process": lambda: run_prepare(whole, folder / "one", 1, residues),
        f"ours end to end, {cores} workers": lambda: run_prepare(whole, folder / "all", cores, residues),
    }
    timings: dict[str, list[Timing]] = {name: [] for name in contestants}
    for _ in range(rounds):
        csv_folder.mkdir()
        for name, contestant in contestants.items():
            timings[name].append(contestant())
        shutil.rmtree(csv_folder)
    return timings


def median(timings: list[Timing]) -> Timing:
    return sorted(timings, key=lambda timing: timing.speed)[len(timings) // 2]


def uniref50_minutes(timing: Timing, cores: int) -> tuple[float, float]:
    """Wall time if reading overlaps everything else, and if nothing overlaps it."""
    scale = UNIREF50_RESIDUES / timing.residues / 60
    serial, total = timing.parent_core_seconds * scale, timing.core_seconds * scale
    usable = min(cores, MAX_WORKERS + 1)
    return max(serial, total / usable), serial + (total - serial) / usable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--fasta", nargs="+", type=Path, default=[SAMPLE], help="default: the embedded sample"
    )
    parser.add_argument("--repeat", type=int, default=50, help="copies of the input, made different")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write every timing here")
    arguments = parser.parse_args()
    # Descendants whose parent has gone become this process's children, so that their CPU time is counted.
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="bench-data-") as name:
        folder = Path(name)
        timings = compare(arguments.fasta, arguments.repeat, arguments.rounds, folder)
        medians = {contestant: median(found) for contestant, found in timings.items()}
        cores = default_workers()
        ours = medians[f"ours end to end, {cores} workers"]
        peak = {}
        for workers in sorted({1, cores, MAX_WORKERS}):
            task = functools.partial(
                run_prepare, folder / "whole.fasta.gz", folder / "all", workers, ours.residues
            )
            peak[workers] = peak_memory_mib(task)
    report(timings, medians, ours, peak, arguments.json)


def report(
    timings: dict[str, list[Timing]],
    medians: dict[str, Timing],
    ours: Timing,
    peak_mib: dict[int, float],
    json_path: Path | None,
) -> None:
    tokenizer = medians["EsmTokenizer"]
    scripts = [medians[name] for name in medians if name.startswith("guidance")]
    guidance_speed = 1 / sum(1 / script.speed for script in scripts)
    print(f"{'':34} {'residues':>13} {'core-s':>8} {'wall s':>8} {'M residues/core-s':>18}")
    for name, timing in medians.items():
        columns = f"{timing.residues:>13,} {timing.core_seconds:>8.2f} {timing.wall_seconds:>8.2f}"
        print(f"{name:34} {columns} {timing.speed / 1e6:>18.2f}")
    print(f"{'guidance 1 + 2':34} {'':>31} {guidance_speed / 1e6:>18.2f}")
    one = medians["ours end to end, 1 process"]
    ratios = {
        "look-up over EsmTokenizer": medians["our look-up"].speed / tokenizer.speed,
        "ours over the guidance's scripts": min(one.speed, ours.speed) / guidance_speed,
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.0f}x (target {TARGETS[name]}x)")
    for workers, mib in peak_mib.items():
        print(f"peak memory of all processes, {workers} worker(s): {mib:.0f} MiB (limit 1024)")
    print(
        f"UniRef50 ({UNIREF50_RESIDUES / 1e9:.0f} G residues), wall = max(serial, total / cores) "
        "[serial + rest / cores], with"
    )
    rates = (1e9 * ours.parent_core_seconds / ours.residues, 1e9 * ours.core_seconds / ours.residues)
    print(f"  serial {rates[0]:.2f} (the reading process), total {rates[1]:.2f} core-s per G residues")
    projection = {}
    for cores, target in ((2, 20), (16, 4)):
        overlapped, apart = uniref50_minutes(ours, cores)
        projection[cores] = {"overlapped_minutes": overlapped, "not_overlapped_minutes": apart}
        print(f"  {cores:2} cores: {overlapped:.1f} [{apart:.1f}] minutes (target under {target})")
    if json_path:
        packages = ("transformers", "datasets", "pyarrow", "pyfastx", "isal", "numpy")
        result = {
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "versions": {package: version(package) for package in packages},
            "medians": {name: asdict(timing) | {"speed": timing.speed} for name, timing in medians.items()},
            "rounds": {name: [asdict(timing) for timing in found] for name, found in timings.items()},
            "spread": {
                name: statistics.pstdev(t.speed for t in found) / medians[name].speed
                for name, found in timings.items()
            },
            "ratios": ratios,
            "peak_memory_mib": peak_mib,
            "uniref50_minutes": projection,
        }
        json_path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    with one_line_if_missing():
        main()
