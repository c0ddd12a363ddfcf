"""Stage 5: our trainer and transformers' Trainer, interleaved on the same proteins from the same weights.

The contestants are ``guidance``, ``tuned`` and, on a GPU, ``packed`` (``benchmarks/trainers.py``), all
compiled, and ours. Each is a process that works only in its turn, in the order A B C D D C B A. A machine
that is slower for a while is thus slower for all, and ratios are taken within a round.

On a GPU, contestants load and warm up side by side, as far as the memory allows. A window of a contestant has
the same number of steps in all rounds, as many as fit its length at the pace of a short trial. On a CPU, each
contestant has one thread, seconds are CPU time of its process, and it computes in the type that was faster
for it in a short trial.
"""

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition
from typing import Any, NamedTuple

import torch

from benchmarks.case import Case, Line, Settings, judged
from benchmarks.contestant import (
    REHEARSED,
    Contestant,
    ContestantFailedError,
    ContestantProcess,
    Grant,
    Window,
    steady,
    windows_of,
)
from benchmarks.figures import Precision, ceiling_of, extent, figures_of, precisions_of, shown
from benchmarks.order import MEMORY_SHARE
from benchmarks.ours import Ours, model_of, run_config, wanted_kernels
from benchmarks.stages.speed import JUDGED_GPU
from benchmarks.trainers import GUIDANCE_BATCH_SIZE, Trainers
from seqlm.runs.run_file import ModelConfig
from seqlm.training.config import TrainConfig
from seqlm.training.records import RecordSplit


class Memory(NamedTuple):
    """GB of the device that the contestants need."""

    guidance: float
    tuned: float
    packed: float
    ours: float
    states: float
    """Parameters, gradients and optimizer state of one contestant, which stay between windows."""


class Shape(NamedTuple):
    """Shape of a case."""

    size: str
    tuned_batch: int
    """Batch size of ``tuned``."""
    tokens_per_pack: int
    """Tokens per pack of ours, and of ``packed``."""
    seconds: float
    """Expected wall time of the measurement."""
    warm_seconds: float = 0.0
    """Expected wall time of the warm-up."""
    memory: Memory = Memory(0, 0, 0, 0, 0)
    more: str = ""
    """Further settings."""


MEMORY_8M = Memory(guidance=2, tuned=30, packed=9, ours=6, states=0.2)
MEMORY_650M = Memory(guidance=15, tuned=72, packed=44, ours=39, states=11)
MEMORY_300M = Memory(guidance=9, tuned=60, packed=36, ours=30, states=6)
# Ours was measured on an H200. Memory of the others is that of ours times their tokens, and a fifth. At 8M,
# 145 s passed there until all contestants were warm, although another start had compiled before, and 210 s
# of a warm-up beside other cases did not suffice, nor 240 s at 650M. The rounds took 50 s. The other times
# are estimates. Contestants print their times, which will show what their starts wait for.
SHAPES = (
    Shape("8M", 256, 65536, seconds=200, warm_seconds=240, memory=MEMORY_8M),
    Shape("650M", 32, 16384, seconds=220, warm_seconds=300, memory=MEMORY_650M),
    Shape("8M", 64, 65536, seconds=200, warm_seconds=240, memory=MEMORY_8M),
    Shape("300M", 64, 16384, seconds=220, warm_seconds=300, memory=MEMORY_300M),
)
CPU_SHAPES = (
    Shape("8M", tuned_batch=8, tokens_per_pack=4096, seconds=1500),
    Shape("300M", tuned_batch=8, tokens_per_pack=4096, seconds=3000, more=",layers=4"),
)
"""On a Zen 4 core, interleaved runs of ``tuned`` with batches of 4, 8 and 16 reached 1.30, 1.33 and 1.32 k
residues/s."""
GPU_GOALS = {
    "8M": {"guidance": 4.0, "tuned": 2.0, "packed": 1.3},
    "650M": {"guidance": 3.0, "tuned": 1.5, "packed": 1.3},
}
"""Least ratios of our residues/s to theirs on ``JUDGED_GPU``."""
CPU_GOALS = {
    "8M": {"guidance": 2.5, "tuned": 1.7},
    "300M": {"tuned": 1.3},
}
"""Least ratios of our residues/s to theirs on a CPU."""
OURS = "ours"
PACKED = "packed"
LEAST = {"guidance": GUIDANCE_BATCH_SIZE, "tuned": 1, PACKED: 2048, OURS: 2048}
"""Smallest batches that are tried when memory runs out."""
ROUNDS = {"cuda": 2, "cpu": 3}
WARMUP = Grant(steps=6)
"""Window for compilation, for kernels that the first batch of a shape compiles, and for the allocator."""
TRIAL = Grant(seconds=5, steps=2)
PACE_TRIAL = Grant(seconds=1, steps=2)
"""Window that shows how many steps fit the length of a window."""


def cases(settings: Settings) -> list[Case]:
    found: list[Case] = []
    for shape in SHAPES if settings.as_on_gpu else CPU_SHAPES:
        text = (
            f"tuned_batch={shape.tuned_batch},tokens_per_pack={shape.tokens_per_pack}{shape.more}"
        )
        found.append(
            Case(
                "versus",
                shape.size,
                "all",
                text,
                shape.seconds,
                warm_seconds=shape.warm_seconds,
                gigabytes=max(shape.memory),
            )
        )
    return found


def shape_of(case: Case, settings: Settings) -> Shape:
    """Return the shape of a case."""
    shapes = SHAPES if settings.as_on_gpu else CPU_SHAPES
    batch = case.values["tuned_batch"]
    return next(one for one in shapes if (one.size, str(one.tuned_batch)) == (case.size, batch))


@dataclass(frozen=True)
class Entry:
    """Contestant by name, with the choices made before the first round."""

    name: str
    model: ModelConfig
    data: Path
    folder: Path
    batch: int
    """Rows of a batch; for ours and ``packed``, tokens per pack."""
    compiled: bool
    precision: Precision = "bf16"
    kernels: frozenset[str] | None = None
    """Kernels of ours; None for those that the run selects."""

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
        return Ours(run_config(self.model, self.data, train), self.kernels)


class DeviceMemory:
    """Memory of the device that contestants warm up in, side by side.

    Args:
        gigabytes: amount of memory.
    """

    def __init__(self, gigabytes: float) -> None:
        self._gigabytes = gigabytes
        self._taken = 0.0
        self._changed = Condition()

    @contextmanager
    def taken(self, gigabytes: float) -> Iterator[None]:
        """Wait for an amount of memory. If none is taken, any amount is available."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._taken or self._taken + gigabytes <= self._gigabytes
            )
            self._taken += gigabytes
        try:
            yield
        finally:
            with self._changed:
                self._taken -= gigabytes
                self._changed.notify_all()


def run(case: Case, settings: Settings) -> dict[str, Any]:
    """Run the rounds. Batches that do not fit are halved; the others continue when one contestant fails."""
    device = settings.device
    shape = shape_of(case, settings)
    with TemporaryDirectory(prefix="bench-versus-") as name, ExitStack() as stack:
        folder = Path(name)
        model = model_of(case.size, settings, folder, int(case.values.get("layers", 0)))
        comparison = _Comparison(case, settings, model)
        for key, started in _all_started(_entries(shape, settings, model, folder), shape, settings):
            try:
                process, entry = started.result()
                stack.callback(process.close)
                comparison.add(key, process, entry)
            except ContestantFailedError as error:
                comparison.errors[key] = str(error)
        if settings.is_warm_up:
            return {}
        comparison.find_paces()
        for number in range(ROUNDS[device.type]):
            comparison.run_round(number)
        return comparison.figures()


def _entries(
    shape: Shape, settings: Settings, model: ModelConfig, folder: Path
) -> dict[str, Entry]:
    """Return the contestants of a case by name."""
    batches = {"guidance": GUIDANCE_BATCH_SIZE, "tuned": shape.tuned_batch}
    if settings.as_on_gpu:
        batches[PACKED] = shape.tokens_per_pack
    batches[OURS] = shape.tokens_per_pack
    if settings.rehearsal:
        batches |= {"tuned": 4, PACKED: LEAST[PACKED], OURS: LEAST[OURS]}
    is_compiled = not settings.rehearsal
    kernels = wanted_kernels(settings.kernels)
    entries: dict[str, Entry] = {}
    for key, batch in batches.items():
        entry = Entry(key, model, settings.data, folder, batch, is_compiled, kernels=kernels)
        trial = REHEARSED if settings.is_short else TRIAL
        entries[key] = _in_faster_type(entry, precisions_of(settings.device), trial)
    return entries


def _all_started(
    entries: dict[str, Entry], shape: Shape, settings: Settings
) -> Iterator[tuple[str, Future[tuple[ContestantProcess, Entry]]]]:
    """Start contestants, and yield each with its process: on CUDA side by side, else one by one."""
    available = max(shape.memory)
    parks = False
    if settings.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(settings.device)
        # Beside a warm-up there are other processes, whose needs have been planned for.
        if not settings.is_warm_up:
            available = free / 1e9 * MEMORY_SHARE
        kept = (len(entries) - 1) * shape.memory.states
        parks = kept + max(shape.memory[:-1]) > free / 1e9 * MEMORY_SHARE
    memory = DeviceMemory(available)
    warmup = REHEARSED if settings.rehearsal else WARMUP
    workers = len(entries) if settings.device.type == "cuda" else 1
    with ThreadPoolExecutor(workers) as pool:
        started: dict[str, Future[tuple[ContestantProcess, Entry]]] = {}
        for key, entry in entries.items():
            needed = getattr(shape.memory, key)
            started[key] = pool.submit(_started, entry, warmup, parks, memory, needed)
        yield from started.items()


class _Comparison:
    """Contestants of a case, and the windows that they have worked in."""

    def __init__(self, case: Case, settings: Settings, model: ModelConfig) -> None:
        self.errors: dict[str, str] = {}
        """Messages of the contestants that failed."""
        self._case = case
        self._settings = settings
        self._model = model
        self._entries: dict[str, Entry] = {}
        self._num_proteins = RecordSplit(settings.data, "train").num_units
        self._running: dict[str, ContestantProcess] = {}
        self._grants: dict[str, Grant] = {}
        self._windows: dict[str, list[Window]] = {}
        self._ceilings: list[float] = []

    def add(self, key: str, process: ContestantProcess, entry: Entry) -> None:
        """Add a contestant that has warmed up."""
        self._running[key] = process
        self._entries[key] = entry
        self._windows[key] = []

    def find_paces(self) -> None:
        """Count the windows of each contestant in steps."""
        grant = steady(self._settings)
        for key in list(self._running):
            self._grants[key] = grant
            if self._settings.rehearsal:
                continue
            trial = self._window(key, PACE_TRIAL)
            if trial is not None:
                steps = math.ceil(grant.seconds * trial.steps / trial.seconds)
                self._grants[key] = replace(grant, seconds=0.0, steps=steps)

    def run_round(self, number: int) -> None:
        """Grant each contestant a window, and write what has been measured after each of them."""
        self._ceilings.append(ceiling_of(self._settings.device).flops_per_second)
        # Every second round has the reverse order.
        order = list(self._running) if number % 2 == 0 else list(reversed(self._running))
        for key in order:
            window = self._window(key, self._grants[key])
            if window is None:
                continue
            self._windows[key].append(window)
            rate = window.residues_per_second
            print(f"round {number + 1}: {key} {rate:,.0f} residues/s", flush=True)
            self._settings.record(self.figures())

    def _window(self, key: str, grant: Grant) -> Window | None:
        """Return the window of a contestant; None if it fails, which ends it."""
        try:
            return self._running[key].window(grant)
        except ContestantFailedError as error:
            self.errors[key] = str(error)
            del self._running[key]
            del self._windows[key]
            return None

    def figures(self) -> dict[str, Any]:
        """Return the figures of the rounds so far."""
        device = self._settings.device
        contestants: dict[str, dict[str, Any]] = {}
        for key, windows in self._windows.items():
            if not windows:
                continue
            entry = self._entries[key]
            figures = figures_of(
                windows,
                self._model,
                device,
                self._ceilings,
                tokens_per_pack=entry.batch if key == OURS else None,
            )
            contestants[key] = {
                **figures,
                "batch": entry.batch,
                "precision": entry.precision,
                **self._notes(key, windows),
            }
        goals = self._goals()
        return {"contestants": contestants, **compared(self._windows, goals, self.errors)}

    def _notes(self, key: str, windows: list[Window]) -> dict[str, Any]:
        """Return a contestant's notes: our kernels, or the graphs compiled after the warm-up."""
        notes = dict(windows[-1].notes)
        # A loader of the Trainer starts anew in each epoch.
        notes["epochs"] = round(windows[-1].proteins / self._num_proteins, 2)
        if "graphs" in notes:
            before = self._running[key].warmup.notes["graphs"]
            notes["recompilations"] = notes["graphs"] - before
        return notes

    def _goals(self) -> dict[str, float]:
        settings = self._settings
        if settings.rehearsal:
            return {}
        if settings.device.type == "cpu":
            return CPU_GOALS.get(self._case.size, {})
        is_judged = JUDGED_GPU in torch.cuda.get_device_name(settings.device)
        return GPU_GOALS.get(self._case.size, {}) if is_judged else {}


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


def _started(
    entry: Entry, warmup: Grant, parks: bool, memory: DeviceMemory, gigabytes: float
) -> tuple[ContestantProcess, Entry]:
    """Return a contestant after its first window, with the batch that fits into memory.

    Args:
        entry: contestant.
        warmup: grant of its first window.
        parks: whether its state leaves the device between windows.
        memory: memory of the device.
        gigabytes: memory that the first window needs.
    """
    while True:
        try:
            process = ContestantProcess(
                entry.name,
                entry.contestant(),
                warmup,
                parks=parks,
                device_memory=memory.taken(gigabytes),
            )
            return process, entry
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
        # In the middle of a round, one of them has a window more.
        rounds = min(len(found), len(windows.get(OURS, ())))
        if key != OURS and rounds:
            pairs = zip(windows[OURS][:rounds], found[:rounds], strict=True)
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
            unit = "tokens" if key in (OURS, PACKED) else "rows"
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
