"""Stage 5: our trainer and transformers' Trainer, interleaved on the same proteins from the same weights.

The contestants are ``guidance`` and ``tuned`` (``benchmarks/trainers.py``), both compiled, and ours. Each
is a process that works only in its turn, in the order A B C C B A. A machine that is slower for a while is
thus slower for all, and ratios are taken within a round. On a CPU, each contestant has one thread, seconds
are CPU time of its process, and it computes in the type that was faster for it in a short trial.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.case import Case, Line, Settings, judged
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


class Shape(NamedTuple):
    """Shape of a case."""

    size: str
    tuned_batch: int
    """Batch size of ``tuned``."""
    tokens_per_pack: int
    """Tokens per pack of ours."""
    seconds: float
    """Expected wall time."""
    more: str = ""
    """Further settings."""


SHAPES = (
    Shape("8M", tuned_batch=256, tokens_per_pack=65536, seconds=230),
    Shape("650M", tuned_batch=32, tokens_per_pack=16384, seconds=290),
    Shape("8M", tuned_batch=64, tokens_per_pack=65536, seconds=230),
    Shape("300M", tuned_batch=64, tokens_per_pack=16384, seconds=270),
)
CPU_SHAPES = (
    Shape("8M", tuned_batch=8, tokens_per_pack=4096, seconds=1500),
    Shape("300M", tuned_batch=8, tokens_per_pack=4096, seconds=3000, more=",layers=4"),
)
"""On a Zen 4 core, interleaved runs of ``tuned`` with batches of 4, 8 and 16 reached 1.30, 1.33 and 1.32 k
residues/s."""
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
"""Window for compilation, for kernels that the first batch of a shape compiles, and for the allocator."""
TRIAL = Grant(seconds=5, steps=2)


def cases(settings: Settings) -> list[Case]:
    found: list[Case] = []
    for shape in SHAPES if settings.as_on_gpu else CPU_SHAPES:
        text = (
            f"tuned_batch={shape.tuned_batch},tokens_per_pack={shape.tokens_per_pack}{shape.more}"
        )
        found.append(Case("versus", shape.size, "all", text, shape.seconds))
    return found


@dataclass(frozen=True)
class Entry:
    """Contestant by name, with the choices made before the first round."""

    name: str
    model: ModelConfig
    data: Path
    folder: Path
    batch: int
    """Rows of a batch; for ours, tokens per pack."""
    compiled: bool
    precision: Precision = "bf16"

    def contestant(self) -> Contestant:
        if self.name != OURS:
            return Trainers(
                name=self.name,
                model=self.model,
                rows=self.folder / self.name,
                data=self.data,
                batch_size=self.batch,
                precision=self.precision,
                compiled=self.compiled,
            )
        train = TrainConfig(
            tokens_per_pack=self.batch, tokens_per_step=self.batch, precision=self.precision
        )
        return Ours(run_config(self.model, self.data, train))


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Run the rounds. Batches that do not fit are halved; the others continue when one contestant fails."""
    device = settings.device
    rehearsal = settings.rehearsal
    trial = REHEARSED if rehearsal else TRIAL
    warmup = REHEARSED if rehearsal else WARMUP
    steady = REHEARSED if rehearsal else STEADY
    batches = {"guidance": GUIDANCE_BATCH_SIZE, "tuned": 4, OURS: LEAST[OURS]}
    if not rehearsal:
        batches |= {
            "tuned": int(case.values["tuned_batch"]),
            OURS: int(case.values["tokens_per_pack"]),
        }
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
        ceilings: list[float] = []
        for number in range(ROUNDS[device.type]):
            ceilings.append(ceiling_of(device).flops_per_second)
            # Every second round has the reverse order.
            order = list(running) if number % 2 == 0 else list(reversed(running))
            for key in order:
                try:
                    windows[key].append(running[key].window(steady))
                except ContestantFailedError as error:
                    errors[key] = str(error)
                    del running[key]
                    del windows[key]
            rates = [
                f"{key} {found[-1].residues_per_second:,.0f}" for key, found in windows.items()
            ]
            print(f"round {number + 1}: {', '.join(rates)}", flush=True)
        contestants: dict[str, dict[str, Any]] = {}
        for key, found in windows.items():
            batch = entries[key].batch
            tokens_per_pack = batch if key == OURS else None
            figures = figures_of(found, model, device, ceilings, tokens_per_pack=tokens_per_pack)
            contestants[key] = {**figures, "batch": batch, "precision": entries[key].precision}
    goals: dict[str, float] = {}
    if not rehearsal:
        goals = GOALS.get((device.type, case.size), {})
    return {"contestants": contestants, **compared(windows, goals, errors)}


def _in_faster_type(entry: Entry, precisions: tuple[Precision, ...], grant: Grant) -> Entry:
    """Return the entry in the type in which it is faster, without compilation."""
    if len(precisions) == 1:
        return replace(entry, precision=precisions[0])
    rates: dict[Precision, float] = {}
    for precision in precisions:
        tried = replace(entry, precision=precision, compiled=False)
        _, measured = windows_of(tried.contestant(), (REHEARSED, grant))
        rates[precision] = measured.residues_per_second
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
    ratios: dict[str, dict[str, float]] = {}
    for key, found in windows.items():
        if key != OURS and OURS in windows:
            pairs = zip(windows[OURS], found, strict=True)
            by_round = [
                ours.residues_per_second / theirs.residues_per_second for ours, theirs in pairs
            ]
            ratios[key] = extent(by_round)
    are_met = [ratios[key]["median"] >= goal for key, goal in goals.items() if key in ratios]
    verdict = judged(has_goal=bool(are_met), is_met=all(are_met))
    result: dict[str, Any] = {
        "ratios": ratios,
        "goals": goals,
        "errors": errors,
        "verdict": verdict,
    }
    if failed := [error for error in errors.values() if not error.startswith("out of memory")]:
        return {**result, "verdict": "failed", "error": "; ".join(failed)}
    return {**result, "verdict": "out of memory" if OURS in errors else verdict}


def rows(lines: list[Line]) -> list[dict[str, str]]:
    """Return one row per contestant."""
    found: list[dict[str, str]] = []
    for line in lines:
        figures = line["figures"]
        for key, one in figures["contestants"].items():
            ratio = figures["ratios"].get(key)
            unit = "tokens" if key == OURS else "rows"
            found.append(
                {
                    "model": line["size"],
                    "contestant": key,
                    "batch": f"{one['batch']:,} {unit}, {one['precision']}",
                    "residues/s": f"{one['residues_per_second']:,.0f}",
                    "slowest - fastest": f"{one['slowest']:,.0f} - {one['fastest']:,.0f}",
                    **shown(one),
                    "ours over it": f"{ratio['median']:.2f}x" if ratio else "",
                }
            )
        for key in figures["errors"]:
            found.append({"model": line["size"], "contestant": key, "residues/s": "out of memory"})
    return found
