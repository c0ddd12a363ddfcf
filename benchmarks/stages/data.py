"""Data preparation compared with transformers' tokenizer and the AWS guidance's two scripts, per core-second.

The input is a FASTA.gz of UniRef50's shape: headers of its form, and the proteins of the prepared folder cut
so that the mean length is near its 288 residues, in copies that differ. Contestants are interleaved. A
core-second is a second of CPU time of a process and all its descendants. Our preparation runs in a process of
its own, so that its startup and imports count. Those of the others do not count.
"""

import csv
import ctypes
import gzip
import math
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.case import Case, Line, Settings, judged
from seqlm.proteins.alphabet import TOKENS, decode, encode
from seqlm.training.data.limits import MAX_WORKERS, default_workers
from seqlm.training.records import RecordSplit

UNIREF50_RESIDUES = 20e9
"""Residues of 69.5 million proteins, 288 on average."""
MAX_PIECE_RESIDUES = 400
GUIDANCE_LENGTH = 512
INPUT_RESIDUES = 200_000_000
SUBSET_PROTEINS = 10_000
"""Proteins for the slow contestants, which take about five seconds."""
ROUNDS = 3
REHEARSED_RESIDUES = 20_000
REHEARSED_SUBSET = 50
SECONDS_BETWEEN_SAMPLES = 0.02
"""Interval at which the memory is read."""
LOOK_UPS = 20
"""Repetitions of a lookup in a turn, because one lookup is shorter than the clock's resolution."""
TOKENIZER = "transformers' EsmTokenizer"
LOOK_UP = "our lookup"
SCRIPTS = ("guidance 1: pyfastx to CSV", "guidance 2: CSV, tokenized and padded to 512, to Arrow")
GOALS = {LOOK_UP: 200, "ours": 40}
"""Least ratio of our lookup to the tokenizer, and of ours to the guidance's scripts together."""
PR_SET_CHILD_SUBREAPER = 36
# Program of our preparation. Its arguments are the input, the output folder and the workers. It prints the
# CPU time of the process that reads and decompresses.
PREPARE = """
import sys, time
from pathlib import Path
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
if __name__ == "__main__":
    prepare(
        ProteinFiles([Path(sys.argv[1])]),
        Path(sys.argv[2]),
        seed=0,
        validation_fraction=0.01,
        test_fraction=0.01,
        execution=Execution(workers=int(sys.argv[3]), progress=False),
    )
    print(time.process_time())
"""


@dataclass(frozen=True)
class Turn:
    """Work of a contestant in one round."""

    residues: int
    core_seconds: float
    reading_seconds: float = 0.0
    """Core-seconds of the one process that reads and decompresses. More cores do not shorten them."""

    @property
    def rate(self) -> float:
        return self.residues / self.core_seconds


def cases(settings: Settings) -> list[Case]:
    return [Case("data", "-", "all", f"residues={INPUT_RESIDUES},rounds={ROUNDS}", 300)]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    # Orphaned descendants become this process's children, so that their CPU time is counted.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wanted_residues = REHEARSED_RESIDUES if settings.rehearsal else INPUT_RESIDUES
    subset = REHEARSED_SUBSET if settings.rehearsal else SUBSET_PROTEINS
    rounds = 1 if settings.rehearsal else ROUNDS
    cores = default_workers()
    with TemporaryDirectory(prefix="bench-data-") as name:
        folder = Path(name)
        residues = write_input(settings.data, folder / "whole.fasta.gz", residues=wanted_residues)
        contestants = _contestants(settings.data, subset, folder, residues, cores)
        turns: dict[str, list[Turn]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, contestant in contestants.items():
                turns[name].append(contestant())
        peaks = {
            workers: peak_memory_mib(partial(_prepare, folder, workers, residues))
            for workers in sorted({1, cores, MAX_WORKERS})
        }
    rates = {name: statistics.median(turn.rate for turn in found) for name, found in turns.items()}
    guidance = 1 / sum(1 / rates[name] for name in SCRIPTS)
    ours = [name for name in rates if name.startswith("ours")]
    lookup_ratio = rates[LOOK_UP] / rates[TOKENIZER]
    ratios = {name: rates[name] / guidance for name in ours}
    is_met = lookup_ratio >= GOALS[LOOK_UP] and all(
        ratio >= GOALS["ours"] for ratio in ratios.values()
    )
    return {
        "residues_per_core_second": {**rates, "guidance 1 and 2": guidance},
        "slowest_and_fastest": {
            name: [min(turn.rate for turn in found), max(turn.rate for turn in found)]
            for name, found in turns.items()
        },
        "ratios": {LOOK_UP: lookup_ratio, **ratios},
        "peak_memory_mib": peaks,
        "uniref50_minutes": {
            cores: _uniref50_minutes(turns[ours[-1]][-1], cores) for cores in (2, 16)
        },
        "verdict": judged(has_goal=not settings.rehearsal, is_met=is_met),
    }


def _contestants(
    data: Path, subset: int, folder: Path, residues: int, cores: int
) -> dict[str, Callable[[], Turn]]:
    import datasets
    from transformers import EsmTokenizer

    datasets.disable_progress_bars()
    (folder / "vocab.txt").write_text("\n".join(TOKENS))
    tokenizer = EsmTokenizer(str(folder / "vocab.txt"))
    few = folder / "subset.fasta.gz"
    few_residues = write_input(data, few, proteins=subset)
    sequences = [sequence for _, sequence in _records(few)]
    to_csv, to_arrow = SCRIPTS

    def look_up() -> None:
        for _ in range(LOOK_UPS):
            for sequence in sequences:
                encode(sequence)

    return {
        TOKENIZER: lambda: _timed(
            few_residues, lambda: tokenizer(sequences, add_special_tokens=False)
        ),
        LOOK_UP: lambda: _timed(LOOK_UPS * few_residues, look_up),
        to_csv: lambda: _timed(few_residues, lambda: fasta_to_csv(few, folder)),
        to_arrow: lambda: _timed(few_residues, lambda: tokenize_csv(folder, tokenizer)),
        "ours, FASTA.gz to shards, 1 process": lambda: _prepare(folder, 1, residues),
        f"ours, FASTA.gz to shards, {cores} workers": lambda: _prepare(folder, cores, residues),
    }


def write_input(
    data: Path, path: Path, *, proteins: float = math.inf, residues: float = math.inf
) -> int:
    """Write proteins of a prepared folder in the form of UniRef50, up to a number of proteins or residues.

    Returns:
        The number of residues written.
    """
    written = 0
    with gzip.open(path, "wt", compresslevel=6) as file:
        for number, (header, sequence) in enumerate(_uniref50_shaped(data)):
            if number == proteins or written >= residues:
                break
            lines = "\n".join(sequence[start : start + 60] for start in range(0, len(sequence), 60))
            file.write(f">{header}\n{lines}\n")
            written += len(sequence)
    return written


def _uniref50_shaped(data: Path) -> Iterator[tuple[str, str]]:
    """Yield headers and sequences endlessly: pieces of proteins, rotated by another amount in each copy."""
    split = RecordSplit(data, "train")
    places, _ = split.draw(0, split.num_units, seed=0, epoch=0)
    proteins = [decode(split.token_ids(place)) for place in places]
    copy = 0
    while True:
        for index, sequence in enumerate(proteins):
            num_pieces = math.ceil(len(sequence) / MAX_PIECE_RESIDUES)
            size = math.ceil(len(sequence) / num_pieces)
            shift = copy % len(sequence)
            rotated = sequence[shift:] + sequence[:shift]
            for number, start in enumerate(range(0, len(rotated), size)):
                key = f"A{index:06d}{number}{copy:03d}"
                yield (
                    f"UniRef50_{key} Uncharacterized protein n=1 Tax=Triplophysa tibetana "
                    f"TaxID=1572043 RepID={key}_9TELE",
                    rotated[start : start + size],
                )
        copy += 1


def _timed(residues: int, work: Callable[[], object]) -> Turn:
    before = core_seconds()
    work()
    return Turn(residues, core_seconds() - before)


def core_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _records(fasta: Path) -> Iterator[tuple[str, str]]:
    """Yield headers and sequences with the reader of the guidance's first script."""
    import pyfastx

    yield from pyfastx.Fasta(str(fasta), build_index=False)


def fasta_to_csv(fasta: Path, folder: Path) -> None:
    """Run the guidance's first script: read with pyfastx, shuffle all rows in memory, and write CSV."""
    rows = list(_records(fasta))
    random.Random(0).shuffle(rows)
    with (folder / "x000.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows((name.split()[0], sequence) for name, sequence in rows)


def tokenize_csv(folder: Path, tokenizer: Callable[..., Any]) -> None:
    """Run the guidance's second script: tokenize CSV, pad every row to 512, and write Arrow."""
    import datasets

    # In an existing folder, datasets would find the rows of an earlier turn.
    with TemporaryDirectory(dir=folder) as fresh:
        rows = datasets.load_dataset(
            "csv", data_files=[str(folder / "x000.csv")], cache_dir=f"{fresh}/cache", split="train"
        )
        settings = {"padding": "max_length", "truncation": True, "max_length": GUIDANCE_LENGTH}
        tokenized = rows.map(
            lambda batch: tokenizer(batch["text"], return_special_tokens_mask=True, **settings),
            batched=True,
            remove_columns=["id", "text"],
        )
        tokenized.save_to_disk(f"{fresh}/arrow")


def _prepare(folder: Path, workers: int, residues: int) -> Turn:
    """Prepare in a process of its own, and wait for its descendants."""
    import psutil

    process = psutil.Process()
    others = set(process.children())
    before = core_seconds()
    with TemporaryDirectory(dir=folder) as fresh:
        command = [
            sys.executable,
            "-c",
            PREPARE,
            f"{folder}/whole.fasta.gz",
            f"{fresh}/out",
            str(workers),
        ]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # The workers are children of a fork server, which ends a moment after the run.
    while left := set(process.children()) - others:
        psutil.wait_procs(left)
    return Turn(residues, core_seconds() - before, float(printed))


def peak_memory_mib(work: Callable[[], object]) -> float:
    """Run ``work``, and return the largest sampled sum of proportional set sizes of all descendants."""
    import psutil

    peak = 0
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        while not working.done():
            with suppress(psutil.Error):  # a process has ended meanwhile
                children = psutil.Process().children(recursive=True)
                peak = max(peak, sum(child.memory_full_info().pss for child in children))
            time.sleep(SECONDS_BETWEEN_SAMPLES)
    working.result()  # raises the exception of a failed work
    return peak / 2**20


def _uniref50_minutes(turn: Turn, cores: int) -> list[float]:
    """Return the projected wall time if reading overlaps everything else, and if nothing overlaps it."""
    scale = UNIREF50_RESIDUES / turn.residues / 60
    serial = turn.reading_seconds * scale
    total = turn.core_seconds * scale
    usable = min(cores, MAX_WORKERS + 1)
    return [max(serial, total / usable), serial + (total - serial) / usable]


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per contestant, then memory and the projection to UniRef50."""
    figures = lines[-1]["figures"]
    ratios = figures["ratios"]
    heading = "M residues per core-second"
    found: list[dict[str, str]] = []
    for name, rate in figures["residues_per_core_second"].items():
        ratio = f"{ratios[name]:.0f}x" if name in ratios else ""
        found.append(
            {
                "": name,
                heading: f"{rate / 1e6:.2f}",
                "over the tokenizer, or over both scripts": ratio,
            }
        )
    peaks = [f"{mib:.0f} ({workers})" for workers, mib in figures["peak_memory_mib"].items()]
    minutes = [f"{late:.1f} ({cores})" for cores, (_, late) in figures["uniref50_minutes"].items()]
    found.append({"": "peak memory, MiB (workers)", heading: ", ".join(peaks)})
    found.append({"": "UniRef50, projected minutes (cores)", heading: ", ".join(minutes)})
    return found
