"""Acceptance run: every benchmark of this project, case by case, on the machine at hand.

``python -m benchmarks.acceptance --stages speed,versus --until 540 --out FOLDER --done FILE --data PREPARED``

A case is a stage, a published size of a model, a contestant and a shape. ``benchmarks/order.py`` has the
order of the cases, and why. With ``--until``, only those run that are expected to end in time.

Cases run in processes of their own; those of one size share one. First, all processes warm up: they compile
what their cases need, side by side as far as the GPU's memory allows, with shared caches. Tests run beside
them. Then the cases are measured one after the other.

Whatever a case has measured is printed and written at once, as a line of JSON of ``acceptance.jsonl`` in the
folder of ``--out``. The line has the device, versions, commit, figures and verdict, and the last lines of
output if the case failed. Until the case ends, its verdict is ``incomplete``; a later line of the same case
replaces it. A case has a deadline of twice its expected time and a minute. A case that fails, hangs or runs
out of memory does not end other cases.

``--family`` selects the models. ``speed`` and ``versus`` have cases for each family.

Cases that ``--done`` has for this device are not run again, whatever the commit. Failed and incomplete cases
run again.

``--report FILE`` runs nothing. It writes the tables of README.md and docs/ from the lines of the files
given and of ``benchmarks/results/``, between markers such as ``<!-- acceptance:speed -->``.
"""

import argparse
import json
import math
import os
import queue
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.case import (
    AUTO_KERNELS,
    GPUS_VARIABLE,
    INCOMPLETE,
    UNFINISHED,
    Case,
    Line,
    case_id,
    read_lines,
    say,
)
from benchmarks.order import Group, Job, Room, expected_seconds, fitting, grouped, in_order
from benchmarks.worker_process import WorkerFailedError, WorkerProcess
from seqlm.proteins.families.table import MODEL_FAMILIES

STAGES = "ceilings,parity,hygiene,profile,speed,versus,attention,kernels,quality,finetune,embed,serve,scaling"
LINES_FILE = "acceptance.jsonl"
WINDOW_SECONDS = {"cuda": 4.0, "cpu": 40.0}
"""Length of windows by kind of device. On a CPU, a step of a contestant takes up to two seconds."""
GRACE_SECONDS = 60
"""Time beyond twice the expected time, after which a case is ended."""
REHEARSAL_GRACE_SECONDS = 900
"""Time beyond twice the expected time in a rehearsal, because expected times are those of a GPU."""
UNTIL_GRACE_SECONDS = 30
"""Time beyond ``--until``, after which a case is ended."""
DESCRIBE_SECONDS = 600
"""Time limit for imports and the preparation of data."""


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(given)
    if options.report is not None:
        from benchmarks.report import write_tables  # needs none of the packages that run cases

        print("\n".join(write_tables(options.report)))
        return
    stages = options.stages.split(",")
    if unknown := [name for name in stages if find_spec(f"benchmarks.stages.{name}") is None]:
        raise SystemExit(f"error: --stages: got {', '.join(unknown)}; allowed are {STAGES},data")
    _set_environment()
    options.out.mkdir(parents=True, exist_ok=True)
    # SIGTERM ends the workers, too.
    handler = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    run = AcceptanceRun(options, shlex.join(["python", "-m", "benchmarks.acceptance", *given]))
    try:
        verdicts = run.run(stages)
    finally:
        run.close()
        signal.signal(signal.SIGTERM, handler)
    counts = [f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts)]
    say("; ".join(counts) or "nothing to do")
    if "failed" in verdicts:
        sys.exit(1)


def _set_environment() -> None:
    """Set the variables of all workers: one GPU, quiet libraries, and caches that they share."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        os.environ.setdefault(GPUS_VARIABLE, visible)
    # The Trainer would use all GPUs. All but scaling is measured on one.
    os.environ["CUDA_VISIBLE_DEVICES"] = (visible or "0").split(",")[0] if visible != "" else ""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    caches = Path(tempfile.gettempdir()) / "seqlm-benchmarks"
    os.environ.setdefault("TRITON_CACHE_DIR", str(caches / "triton"))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(caches / "inductor"))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stages", default=STAGES, help="stages, separated by commas (%(default)s)"
    )
    parser.add_argument(
        "--family", choices=MODEL_FAMILIES, default="esm2", help="family of models (%(default)s)"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], help="run only cases with one of these texts in their name"
    )
    until = "time from the start, in seconds, by which every case must end"
    parser.add_argument("--until", type=float, default=math.inf, help=until)
    window = "length of a measured window in seconds, which ends with a whole step (4 on a GPU, 40 on a CPU)"
    parser.add_argument("--window", type=float, help=window)
    kernels = (
        "kernels of our trainer: auto, off, or names of training/kernels.py separated by commas "
        "(%(default)s)"
    )
    parser.add_argument("--kernels", default=AUTO_KERNELS, help=kernels)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/acceptance"), help="folder for the lines"
    )
    parser.add_argument(
        "--done",
        type=Path,
        nargs="+",
        default=[],
        help="files with lines of cases that are not run again",
    )
    parser.add_argument(
        "--data", type=Path, default=Path("data/sample"), help="folder of prepared proteins"
    )
    parser.add_argument(
        "--rehearsal", action="store_true", help="use tiny shapes, to show that every case runs"
    )
    parser.add_argument(
        "--report", type=Path, nargs="+", help="files of lines; only write tables from them"
    )
    return parser.parse_args(arguments)


class AcceptanceRun:
    """Workers of a run, and the lines that they bring about.

    Args:
        options: options of the command line.
        command: command line, for the lines.
    """

    def __init__(self, options: argparse.Namespace, command: str) -> None:
        self._options = options
        self._command = command
        self._started = time.monotonic()
        self._file: Path = options.out / LINES_FILE
        self._machine: dict[str, Any] = {}
        self._workers: dict[str, WorkerProcess] = {}
        self._verdicts: list[str] = []
        self._warm_seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def run(self, stages: Sequence[str]) -> list[str]:
        """Run the wanted cases that fit the time, and return their verdicts."""
        worker = self._new_worker()
        described = worker.ask({"kind": "describe", "stages": stages}, DESCRIBE_SECONDS)
        if "problem" in described:
            worker.close()
            raise SystemExit(f"error: {described['problem']}")
        self._machine = described["machine"]
        gigabytes = described["gigabytes"] or math.inf
        room = Room(gigabytes, os.cpu_count() or 1)
        wanted = self._wanted([Case(**case) for case in described["cases"]])
        chosen = fitting(wanted, self._options.until - self._elapsed(), room)
        for case in wanted:
            if case not in chosen:
                say(f"{case.id}: not started, would pass --until with the cases before it")
                self._verdicts.append("not started")
        groups = grouped(chosen)
        if not groups:
            worker.close()
            return self._verdicts
        # Tests change what they import, so they get workers of their own.
        timed = [group for group in groups if any(case.is_timed for case in group.cases)]
        if timed:
            self._workers[timed[0].process] = worker
        else:
            worker.close()
        total = expected_seconds(chosen, room)
        say(f"{len(chosen)} cases in {len(groups)} processes, about {total:.0f} s")
        self._prepare_all(groups, room)
        for case in chosen:
            if case.is_timed:
                self._measure_in_time(case)
                if not self._is_needed(case, chosen):
                    self._close_worker(case)
        return self._verdicts

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.close()

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _limit(self, seconds: float) -> float:
        """Return the time limit of work that is expected to take ``seconds``."""
        left = self._options.until - self._elapsed() + UNTIL_GRACE_SECONDS
        grace = REHEARSAL_GRACE_SECONDS if self._options.rehearsal else GRACE_SECONDS
        return min(2 * seconds + grace, left)

    def _new_worker(self) -> WorkerProcess:
        window = self._options.window
        return WorkerProcess(
            {
                "data": str(self._options.data),
                "rehearsal": self._options.rehearsal,
                "lines": [str(file) for file in (*self._options.done, self._file)],
                "window": WINDOW_SECONDS
                if window is None
                else dict.fromkeys(WINDOW_SECONDS, window),
                "kernels": self._options.kernels,
            }
        )

    def _worker_of(self, case: Case) -> WorkerProcess:
        name = case.process or case.id
        with self._lock:
            if name not in self._workers:
                self._workers[name] = self._new_worker()
            return self._workers[name]

    def _close_worker(self, case: Case) -> None:
        with self._lock:
            worker = self._workers.pop(case.process or case.id, None)
        if worker is not None:
            worker.close()

    def _is_needed(self, done: Case, cases: Sequence[Case]) -> bool:
        """Return whether a later case shares the process of a case."""
        later = cases[list(cases).index(done) + 1 :]
        return bool(done.process) and any(case.process == done.process for case in later)

    def _wanted(self, cases: Sequence[Case]) -> list[Case]:
        """Return the cases that are neither left out nor done, failed ones last."""
        machine = self._machine
        before = {
            case_id(line): line["verdict"]
            for line in read_lines(self._options.done)
            if (line["device"], line["rehearsal"], line.get("kernels", AUTO_KERNELS))
            == (machine["device"], machine["rehearsal"], machine["kernels"])
        }
        sizes = ("-", *MODEL_FAMILIES[self._options.family].sizes)
        wanted = [case for case in cases if case.size in sizes]
        if self._options.only:
            wanted = [
                case for case in wanted if any(text in case.id for text in self._options.only)
            ]
        done = [case for case in wanted if before.get(case.id, UNFINISHED[0]) not in UNFINISHED]
        if done:
            say(f"done before: {', '.join(case.id for case in done)}")
        pending = [case for case in wanted if case not in done]
        return sorted(in_order(pending), key=lambda case: case.id in before)

    def _prepare_all(self, groups: Sequence[Group], room: Room) -> None:
        """Run warm-ups and tests side by side."""
        waiting = [group for group in groups if group.job.seconds > 0]
        running: dict[str, Job] = {}
        ended: queue.SimpleQueue[str] = queue.SimpleQueue()

        def prepare(group: Group) -> None:
            try:
                self._prepare(group)
            finally:
                ended.put(group.process)

        while waiting or running:
            for group in list(waiting):
                if room.has_place(group.job, list(running.values())):
                    running[group.process] = group.job
                    waiting.remove(group)
                    threading.Thread(target=prepare, args=(group,), daemon=True).start()
            del running[ended.get()]

    def _prepare(self, group: Group) -> None:
        """Run a group's tests, and warm up its other cases."""
        for case in group.cases:
            if not case.is_timed:
                self._measure(case)
                self._close_worker(case)
            elif case.warm_seconds:
                self._warm(case)

    def _warm(self, case: Case) -> None:
        say(f"{case.id}: warms up, about {case.warm_seconds:.0f} s")
        began = time.monotonic()
        worker = self._worker_of(case)
        try:
            worker.ask({"kind": "warm", "case": case.id}, self._limit(case.warm_seconds))
        except WorkerFailedError as error:
            # The case itself will report the reason, in a new process.
            say(f"{case.id}: warm-up {error}")
            self._close_worker(case)
        self._warm_seconds[case.id] = round(time.monotonic() - began, 1)
        say(f"{case.id}: warm after {self._warm_seconds[case.id]:.0f} s")

    def _measure_in_time(self, case: Case) -> None:
        elapsed = self._elapsed()
        if elapsed + case.seconds > self._options.until:
            say(
                f"{case.id}: not started, {case.seconds:.0f} s after {elapsed:.0f} s would pass --until"
            )
            self._verdicts.append("not started")
            return
        self._measure(case)

    def _measure(self, case: Case) -> None:
        """Run a case, and write a line whenever it has measured something."""
        say(f"{case.id}: started, about {case.seconds:.0f} s")
        began = time.monotonic()
        found: dict[str, Any] = {}

        def write(result: dict[str, Any], verdict: str | None = None) -> Line:
            seconds = time.monotonic() - began
            line = self._line(case, result, verdict, seconds)
            self._append(line)
            return line

        def keep(figures: dict[str, Any]) -> None:
            found.update(figures)
            write(found, INCOMPLETE)

        try:
            result = self._worker_of(case).ask(
                {"kind": "run", "case": case.id}, self._limit(case.seconds), keep
            )
            line = write(result)
        except WorkerFailedError as error:
            # A case that was cut has figures to show; one that broke down has none that count.
            verdict = INCOMPLETE if error.is_late and found else "failed"
            line = write({**found, "error": str(error)}, verdict)
        if line["verdict"] in (*UNFINISHED, "out of memory"):
            self._close_worker(case)
        say(f"{case.id}: {line['verdict']} in {line['seconds']:.0f} s {line.get('error', '')}")
        self._verdicts.append(str(line["verdict"]))

    def _line(
        self, case: Case, result: dict[str, Any], verdict: str | None, seconds: float
    ) -> Line:
        """Return the line of a case.

        Args:
            case: case of the line.
            result: figures, and possibly a verdict and an error.
            verdict: verdict in place of that of the result.
            seconds: time of the case so far.
        """
        figures = dict(result)
        own = figures.pop("verdict", "measured")
        line: Line = {
            "stage": case.stage,
            "size": case.size,
            "contestant": case.contestant,
            "shape": case.shape,
            "verdict": verdict or own,
            "seconds": round(seconds, 1),
            "expected_seconds": case.seconds,
        }
        if case.id in self._warm_seconds:
            line["warm_seconds"] = self._warm_seconds[case.id]
        if "error" in figures:
            line["error"] = figures.pop("error")
        return line | {
            "figures": figures,
            **self._machine,
            "command": self._command,
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def _append(self, line: Line) -> None:
        """Write a line to the disk at once, because the machine may be taken away at any time."""
        with self._lock, self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    main()
