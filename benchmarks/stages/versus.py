"""Stage 5: our trainer beside transformers' Trainer, on the same proteins from the same weights, in turns.

The contestants are ``guidance`` and ``tuned`` (``benchmarks/trainers.py``), both compiled, and ours. Each
is a process that works only in its turn, A B C C B A and so on, so that a machine that is slower for a
while is slower for all; ratios are taken within a round. On a CPU each has one thread, a second is one of
its process's CPU time, and each computes in the type that was faster for it in a short trial.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.case import Case, Line, Settings
from benchmarks.contestant import (
    REHEARSED,
    STEADY,
    Contestant,
    ContestantFailedError,
    ContestantProcess,
    Grant,
    Window,
    windows_of,
)
from benchmarks.figures import Precision, ceiling_of, extent, figures_of, precisions_of, shown
from benchmarks.ours import Ours, model_of, run_config
from benchmarks.trainers import GUIDANCE_BATCH_SIZE, Trainers
from seqlm.runs.run_file import ModelConfig
from seqlm.training.config import TrainConfig

SHAPES = (
    ("8M", 256, 65536, "", 230),
    ("650M", 32, 16384, "", 290),
    ("8M", 64, 65536, "", 230),
    ("300M", 64, 16384, "", 270),
)
"""Size, batch size of ``tuned``, tokens per pack of ours, further settings, expected seconds."""
CPU_SHAPES = (("8M", 8, 4096, "", 1500), ("300M", 8, 4096, ",layers=4", 3000))
"""For ``tuned``, batches of 4, 8 and 16 in turns on a Zen 4 core made 1.30, 1.33 and 1.32 k residues/s."""
GOALS = {
    ("cuda", "8M"): {"guidance": 4.0, "tuned": 2.0},
    ("cuda", "650M"): {"guidance": 3.0, "tuned": 1.3},
    ("cpu", "8M"): {"guidance": 2.5, "tuned": 1.7},
    ("cpu", "300M"): {"tuned": 1.3},
}
"""Least ratios of our residues/s to theirs."""
OURS = "ours"
LEAST = {"guidance": GUIDANCE_BATCH_SIZE, "tuned": 1, OURS: 2048}
"""Smallest batches that are tried when memory runs out."""
ROUNDS = {"cuda": 2, "cpu": 3}
WARMUP = Grant(steps=6)
"""Compilation, kernels made at the first sight of a shape, allocator."""
TRIAL = Grant(seconds=5, steps=2)


def cases(settings: Settings) -> list[Case]:
    return [
        Case("versus", size, "all", f"tuned_batch={batch},tokens_per_pack={tokens}{more}", seconds)
        for size, batch, tokens, more, seconds in (SHAPES if settings.as_on_gpu else CPU_SHAPES)
    ]


@dataclass(frozen=True)
class Entry:
    """A contestant by name, with what is settled before the first round."""

    name: str
    model: ModelConfig
    data: Path
    folder: Path
    batch: int
    """Rows; of ours, tokens per pack."""
    compiled: bool
    precision: Precision = "bf16"

    def contestant(self) -> Contestant:
        if self.name != OURS:
            rows, precision = self.folder / self.name, self.precision
            return Trainers(self.name, self.model, rows, self.data, self.batch, precision, self.compiled)
        train = TrainConfig(tokens_per_pack=self.batch, tokens_per_step=self.batch, precision=self.precision)
        return Ours(run_config(self.model, self.data, train))


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Run the rounds. Batches that do not fit are halved; the others continue when one contestant fails."""
    rehearsal, device = settings.rehearsal, settings.device
    trial, warmup, steady = (REHEARSED,) * 3 if rehearsal else (TRIAL, WARMUP, STEADY)
    batches = {"guidance": GUIDANCE_BATCH_SIZE, "tuned": 4, OURS: LEAST[OURS]}
    if not rehearsal:
        batches |= {"tuned": int(case.values["tuned_batch"]), OURS: int(case.values["tokens_per_pack"])}
    with TemporaryDirectory(prefix="bench-versus-") as name, ExitStack() as stack:
        folder = Path(name)
        model = model_of(case.size, settings, folder, int(case.values.get("layers", 0)))
        entries: dict[str, Entry] = {}
        running: dict[str, ContestantProcess] = {}
        errors: dict[str, str] = {}
        for key, batch in batches.items():
            entry = Entry(key, model, settings.data, folder, batch, compiled=not rehearsal)
            entry = _in_faster_type(entry, precisions_of(device), trial)
            try:
                running[key], entries[key] = _started(entry, warmup)
                stack.callback(running[key].close)
            except ContestantFailedError as error:
                errors[key] = str(error)
        windows: dict[str, list[Window]] = {key: [] for key in running}
        ceilings = []
        for number in range(ROUNDS[device.type]):
            ceilings.append(ceiling_of(device)[0])
            for key in list(running)[:: 1 if number % 2 == 0 else -1]:
                try:
                    windows[key].append(running[key].window(steady))
                except ContestantFailedError as error:
                    errors[key] = str(error)
                    del running[key], windows[key]
            rates = (f"{key} {found[-1].residues_per_second:,.0f}" for key, found in windows.items())
            print(f"round {number + 1}: {', '.join(rates)}", flush=True)
        contestants = {}
        for key, found in windows.items():
            batch = entries[key].batch
            tokens = batch if key == OURS else None
            figures = figures_of(found, model, device, ceilings, tokens_per_pack=tokens)
            contestants[key] = {**figures, "batch": batch, "precision": entries[key].precision}
    goals = GOALS.get((device.type, case.size), {}) if not rehearsal else {}
    return {"contestants": contestants, **compared(windows, goals, errors)}


def _in_faster_type(entry: Entry, precisions: tuple[Precision, ...], grant: Grant) -> Entry:
    """Return the entry in the type in which it is faster, without compilation."""
    if len(precisions) == 1:
        return replace(entry, precision=precisions[0])
    rates = {}
    for precision in precisions:
        tried = replace(entry, precision=precision, compiled=False)
        rates[precision] = windows_of(tried.contestant(), (REHEARSED, grant))[1].residues_per_second
    return replace(entry, precision=max(rates, key=lambda name: rates[name]))


def _started(entry: Entry, warmup: Grant) -> tuple[ContestantProcess, Entry]:
    """Return a contestant after its first window, with the batch that fits into memory."""
    while True:
        try:
            return ContestantProcess(entry.name, entry.contestant(), warmup), entry
        except ContestantFailedError as error:
            if not error.out_of_memory or entry.batch // 2 < LEAST[entry.name]:
                raise
            print(f"{entry.name}: a batch of {entry.batch} does not fit", flush=True)
            entry = replace(entry, batch=entry.batch // 2)


def compared(
    windows: dict[str, list[Window]], goals: dict[str, float], errors: dict[str, str]
) -> dict[str, Any]:
    """Return our ratios to the others by round, and the verdict."""
    ratios = {}
    for key, found in windows.items():
        if key != OURS and OURS in windows:
            pairs = zip(windows[OURS], found, strict=True)
            by_round = [ours.residues_per_second / theirs.residues_per_second for ours, theirs in pairs]
            ratios[key] = extent(by_round)
    met = [ratios[key]["median"] >= goal for key, goal in goals.items() if key in ratios]
    verdict = "measured" if not met else "passed" if all(met) else "missed"
    result: dict[str, Any] = {"ratios": ratios, "goals": goals, "errors": errors, "verdict": verdict}
    if failed := [error for error in errors.values() if not error.startswith("out of memory")]:
        return {**result, "verdict": "failed", "error": "; ".join(failed)}
    return {**result, "verdict": "out of memory" if OURS in errors else verdict}


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """One row per contestant."""
    found = []
    for line in lines:
        figures = line["figures"]
        for key, one in figures["contestants"].items():
            ratio = figures["ratios"].get(key)
            found.append(
                {
                    "model": line["size"],
                    "contestant": key,
                    "batch": f"{one['batch']:,} {'tokens' if key == OURS else 'rows'}, {one['precision']}",
                    "residues/s": f"{one['residues_per_second']:,.0f}",
                    "slowest - fastest": f"{one['slowest']:,.0f} - {one['fastest']:,.0f}",
                    **shown(one),
                    "ours over it": f"{ratio['median']:.2f}x" if ratio else "",
                }
            )
        for key in figures["errors"]:
            found.append({"model": line["size"], "contestant": key, "residues/s": "out of memory"})
    return found
