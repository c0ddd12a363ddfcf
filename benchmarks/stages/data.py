"""Data preparation beside transformers' tokenizer and the AWS guidance's two scripts, per core-second.

The input is a FASTA.gz of UniRef50's shape: headers of its form, and the proteins of the prepared folder cut
so that the mean length is near its 288 residues, in copies that differ. Contestants take turns. A core-second
is a second of CPU time of a process and all its descendants. It includes our startup and imports, which
runs in a process of its own, and excludes those of the others.
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

from benchmarks.case import Case, Line, Settings
from seqlm.proteins.alphabet import TOKENS, decode, encode
from seqlm.training.data.limits import MAX_WORKERS, default_workers
from seqlm.training.records import RecordSplit

UNIREF50_RESIDUES = 20e9
"""69.5 million proteins of 288 residues on average."""
MAX_PIECE_RESIDUES = 400
GUIDANCE_LENGTH = 512
INPUT_RESIDUES = 200_000_000
SUBSET_PROTEINS = 10_000
"""Proteins for the slow contestants, about five seconds' work."""
ROUNDS = 3
LOOK_UPS = 20
"""Repetitions of a lookup in a turn, because one lookup is shorter than the clock's resolution."""
TOKENIZER, LOOK_UP = "transformers' EsmTokenizer", "our lookup"
SCRIPTS = ("guidance 1: pyfastx to CSV", "guidance 2: CSV, tokenized and padded to 512, to Arrow")
GOALS = {LOOK_UP: 200, "ours": 40}
"""Least ratios to the tokenizer, and to the guidance's scripts together."""
PR_SET_CHILD_SUBREAPER = 36
PREPARE = """
import sys, time
from pathlib import Path
from seqlm.proteins.data.prepare import Execution, prepare
from seqlm.proteins.data.sources import ProteinFiles
if __name__ == "__main__":
    source, out, workers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    fractions = dict(validation_fraction=0.01, test_fraction=0.01)
    execution = Execution(workers=workers, progress=False)
    prepare(ProteinFiles([source]), out, seed=0, execution=execution, **fractions)
    print(time.process_time())
"""


@dataclass(frozen=True)
class Turn:
    residues: int
    core_seconds: float
    reading_seconds: float = 0.0
    """Core-seconds of the one process that reads and decompresses, which more cores do not shorten."""

    @property
    def rate(self) -> float:
        return self.residues / self.core_seconds


def cases(settings: Settings) -> list[Case]:
    return [Case("data", "-", "all", f"residues={INPUT_RESIDUES},rounds={ROUNDS}", 300)]


def run(case: Case, settings: Settings) -> dict[str, Any]:
    # Descendants whose parent has gone become this process's children, so that their CPU time is counted.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    residues, subset, rounds = (
        (20_000, 50, 1) if settings.rehearsal else (INPUT_RESIDUES, SUBSET_PROTEINS, ROUNDS)
    )
    cores = default_workers()
    with TemporaryDirectory(prefix="bench-data-") as name:
        folder = Path(name)
        residues = write_input(settings.data, folder / "whole.fasta.gz", residues=residues)
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
    ratios = {
        LOOK_UP: rates[LOOK_UP] / rates[TOKENIZER],
        **{name: rates[name] / guidance for name in ours},
    }
    met = all(ratio >= GOALS[LOOK_UP if name == LOOK_UP else "ours"] for name, ratio in ratios.items())
    return {
        "residues_per_core_second": {**rates, "guidance 1 and 2": guidance},
        "slowest_and_fastest": {
            name: [min(turn.rate for turn in found), max(turn.rate for turn in found)]
            for name, found in turns.items()
        },
        "ratios": ratios,
        "peak_memory_mib": peaks,
        "uniref50_minutes": {n: _uniref50_minutes(turns[ours[-1]][-1], n) for n in (2, 16)},
        "verdict": "measured" if settings.rehearsal else "passed" if met else "missed",
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
    return {
        TOKENIZER: lambda: _timed(few_residues, lambda: tokenizer(sequences, add_special_tokens=False)),
        LOOK_UP: lambda: _timed(
            LOOK_UPS * few_residues, lambda: [encode(text) for _ in range(LOOK_UPS) for text in sequences]
        ),
        SCRIPTS[0]: lambda: _timed(few_residues, lambda: fasta_to_csv(few, folder)),
        SCRIPTS[1]: lambda: _timed(few_residues, lambda: tokenize_csv(folder, tokenizer)),
        "ours, FASTA.gz to shards, 1 process": lambda: _prepare(folder, 1, residues),
        f"ours, FASTA.gz to shards, {cores} workers": lambda: _prepare(folder, cores, residues),
    }


def write_input(data: Path, path: Path, *, proteins: float = math.inf, residues: float = math.inf) -> int:
    """Write proteins of a prepared folder, shaped as UniRef50's, until one of the limits.

    Returns:
        The number of residues.
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
    """Headers and sequences without end: proteins cut to pieces, each copy rotated by another amount."""
    split = RecordSplit(data, "train")
    places, _ = split.draw(0, split.num_units, 0, 0)
    proteins = [decode(split.residues(place)) for place in places]
    copy = 0
    while True:
        for index, sequence in enumerate(proteins):
            size = -(-len(sequence) // -(-len(sequence) // MAX_PIECE_RESIDUES))
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
    before = _core_seconds()
    work()
    return Turn(residues, _core_seconds() - before)


def _core_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _records(fasta: Path) -> Iterator[tuple[str, str]]:
    """Headers and sequences by the reader of the guidance's first script."""
    import pyfastx

    yield from pyfastx.Fasta(str(fasta), build_index=False)


def fasta_to_csv(fasta: Path, folder: Path) -> None:
    """First script of the guidance: pyfastx, all rows in memory, shuffled, to CSV."""
    rows = list(_records(fasta))
    random.Random(0).shuffle(rows)
    with (folder / "x000.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text"])
        writer.writerows((name.split()[0], sequence) for name, sequence in rows)


def tokenize_csv(folder: Path, tokenizer: Callable[..., Any]) -> None:
    """Second script of the guidance: CSV through the tokenizer, every row padded to 512, to Arrow."""
    import datasets

    with TemporaryDirectory(dir=folder) as fresh:  # datasets would find the rows of an earlier turn
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
    """Prepare in a process of its own, whose descendants are waited for here."""
    import psutil

    process = psutil.Process()
    others = set(process.children())
    before = _core_seconds()
    with TemporaryDirectory(dir=folder) as fresh:
        command = [sys.executable, "-c", PREPARE, f"{folder}/whole.fasta.gz", f"{fresh}/out", str(workers)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # The workers are children of a fork server, which outlives the run for a moment.
    while left := set(process.children()) - others:
        psutil.wait_procs(left)
    return Turn(residues, _core_seconds() - before, float(printed))


def peak_memory_mib(work: Callable[[], object]) -> float:
    """Largest sum of proportional set sizes of all descendants while ``work`` runs, sampled."""
    import psutil

    peak = 0
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        while not working.done():
            with suppress(psutil.Error):  # a process has ended meanwhile
                children = psutil.Process().children(recursive=True)
                peak = max(peak, sum(child.memory_full_info().pss for child in children))
            time.sleep(0.02)
    working.result()  # raises what the work has raised
    return peak / 2**20


def _uniref50_minutes(turn: Turn, cores: int) -> list[float]:
    """Projected wall time if reading overlaps everything else, and if nothing overlaps it."""
    scale = UNIREF50_RESIDUES / turn.residues / 60
    serial, total = turn.reading_seconds * scale, turn.core_seconds * scale
    usable = min(cores, MAX_WORKERS + 1)
    return [max(serial, total / usable), serial + (total - serial) / usable]


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per contestant, then memory and the projection to UniRef50."""
    figures = lines[-1]["figures"]
    ratios = figures["ratios"]
    peaks = ", ".join(f"{mib:.0f} ({n})" for n, mib in figures["peak_memory_mib"].items())
    minutes = ", ".join(f"{late:.1f} ({n})" for n, (_, late) in figures["uniref50_minutes"].items())
    return [
        *(
            {
                "": name,
                "M residues per core-second": f"{rate / 1e6:.2f}",
                "over the tokenizer, or over both scripts": f"{ratios[name]:.0f}x" if name in ratios else "",
            }
            for name, rate in figures["residues_per_core_second"].items()
        ),
        {"": "peak memory, MiB (workers)", "M residues per core-second": peaks},
        {"": "UniRef50, projected minutes (cores)", "M residues per core-second": minutes},
    ]
