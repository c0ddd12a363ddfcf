"""Acceptance run: every benchmark of this project, case by case, on the machine at hand.

``python -m benchmarks.acceptance --stages speed,versus --until 540 --out FOLDER --done FILE --data PREPARED``

A case is a stage, a published size of a model, a contestant and a shape. Each runs in a process of its own,
with a deadline of twice its expected time and a minute. When it ends, a line of JSON is appended to
``acceptance.jsonl`` in FOLDER. The line has the device, versions, commit, figures and verdict, and the last
lines of output if the case failed. A case that fails, hangs or runs out of memory does not end other cases.

``--family`` selects the models. ``speed`` and ``versus`` have cases for each family.

Cases that ``--done`` has for this device are not run again, whatever the commit. Failed cases run again,
after those that have not been tried. A case is not started if its expected time would pass ``--until``.

``--report FILE`` runs nothing. It writes the tables of README.md and docs/ from the lines of the files
given and of ``benchmarks/results/``, between markers such as ``<!-- acceptance:speed -->``.
"""

import argparse
import json
import math
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch

from benchmarks.case import (
    Case,
    Line,
    Settings,
    Stage,
    case_id,
    is_out_of_memory,
    prepare_unless_there,
    read_lines,
    say,
)
from benchmarks.contestant import use_one_device
from seqlm.proteins.families.table import MODEL_FAMILIES

STAGES = "ceilings,parity,hygiene,profile,speed,versus,quality,finetune,embed,serve"
LINES_FILE = "acceptance.jsonl"
GRACE_SECONDS = 60
"""Time beyond twice the expected time, after which a case is ended."""
UNTIL_GRACE_SECONDS = 30
"""Time beyond ``--until``, after which a case is ended."""
ERROR_LINES = 15


def main(arguments: Sequence[str] | None = None) -> None:
    started = time.monotonic()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(given)
    if options.report is not None:
        from benchmarks.report import write_tables  # needs none of the packages that run cases

        print("\n".join(write_tables(options.report)))
        return
    # The Trainer would use all GPUs. Everything is measured on one.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    lines = options.out / LINES_FILE
    settings = Settings(
        data=options.data, device=device, rehearsal=options.rehearsal, lines=(*options.done, lines)
    )
    if options.case:
        _run_here(options.case, settings, options.result)
        return
    stages = options.stages.split(",")
    if unknown := [name for name in stages if find_spec(f"benchmarks.stages.{name}") is None]:
        raise SystemExit(f"error: --stages: got {', '.join(unknown)}; allowed are {STAGES},data")
    prepare_unless_there(options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    machine = {**_machine(device), "data": str(options.data), "rehearsal": options.rehearsal}
    verdicts: list[str] = []
    cases = [case for name in stages for case in _cases(name, settings)]
    for case in _wanted(cases, options, machine):
        elapsed = time.monotonic() - started
        if elapsed + case.seconds > options.until:
            say(
                f"{case.id}: not started, {case.seconds:.0f} s after {elapsed:.0f} s would pass --until"
            )
            verdicts.append("not started")
            continue
        limit = min(2 * case.seconds + GRACE_SECONDS, options.until - elapsed + UNTIL_GRACE_SECONDS)
        say(f"{case.id}: started, about {case.seconds:.0f} s")
        began = time.monotonic()
        result = _run_apart(case, given, limit)
        line: Line = {
            "stage": case.stage,
            "size": case.size,
            "contestant": case.contestant,
            "shape": case.shape,
            "verdict": result.pop("verdict", "measured"),
            "seconds": round(time.monotonic() - began, 1),
        }
        if "error" in result:
            line["error"] = result.pop("error")
        line |= {
            "figures": result,
            **machine,
            "command": shlex.join(["python", "-m", "benchmarks.acceptance", *given]),
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        _append(lines, line)
        say(f"{case.id}: {line['verdict']} in {line['seconds']:.0f} s {line.get('error', '')}")
        verdicts.append(str(line["verdict"]))
    counts = [f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts)]
    say("; ".join(counts) or "nothing to do")
    if "failed" in verdicts:
        sys.exit(1)


def _append(lines: Path, line: Line) -> None:
    """Write a line to the disk at once, because the machine may be taken away during the next case."""
    with lines.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


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
    # For the process of one case.
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _machine(device: torch.device) -> dict[str, Any]:
    from seqlm.training.hardware import (
        environment,
    )  # imports transformers, which not every case needs

    found = environment(device)
    gpu = found.pop("device")
    commit = found.pop("git_sha") or "unknown"
    processor = _processor()
    return {
        "device": gpu if device.type == "cuda" else processor,
        "processor": processor,
        "commit": commit,
        "versions": found,
    }


def _processor() -> str:
    """Return name, family and model, because virtual machines give one name to several generations."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.is_file() else ""
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    name = found.get("model name", platform.machine())
    if "cpu family" not in found:
        return name
    return f"{name}, family {found['cpu family']}, model {found['model']}"


def _stage(name: str) -> Stage:
    return cast(Stage, import_module(f"benchmarks.stages.{name}"))


def _cases(name: str, settings: Settings) -> list[Case]:
    """Return a stage's cases. A stage that cannot be imported has one case, which fails in the same way."""
    try:
        return _stage(name).cases(settings)
    except Exception as error:
        say(f"{name}: {type(error).__name__}: {error}")
        return [Case(stage=name, size="-", contestant="-", shape="-", seconds=1)]


def _wanted(cases: list[Case], options: argparse.Namespace, machine: dict[str, Any]) -> list[Case]:
    """Return the cases that are neither left out nor done, failed ones last."""
    before = {
        case_id(line): line["verdict"]
        for line in read_lines(options.done)
        if (line["device"], line["rehearsal"]) == (machine["device"], machine["rehearsal"])
    }
    wanted = [case for case in cases if case.size in ("-", *MODEL_FAMILIES[options.family].sizes)]
    if options.only:
        wanted = [case for case in wanted if any(text in case.id for text in options.only)]
    done = [case for case in wanted if before.get(case.id, "failed") != "failed"]
    if done:
        say(f"done before: {', '.join(case.id for case in done)}")
    pending = [case for case in wanted if case not in done]
    return sorted(pending, key=lambda case: case.id in before)


def _run_apart(case: Case, arguments: Sequence[str], limit: float) -> dict[str, Any]:
    """Run a case in a process group of its own, and end all of it at the limit (seconds)."""
    with TemporaryDirectory(prefix="acceptance-") as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-u", "-m", "benchmarks.acceptance", *arguments]
        process = subprocess.Popen(
            [*command, "--case", case.id, "--result", str(result)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        said: deque[str] = deque(maxlen=ERROR_LINES)
        echo = threading.Thread(target=_echo, args=(process, said), daemon=True)
        echo.start()
        problem = ""
        try:
            status = process.wait(limit)
            if status < 0:
                problem = f"ended with signal {signal.Signals(-status).name}"
            elif status > 0:
                problem = f"ended with status {status}"
        except subprocess.TimeoutExpired:
            problem = f"still running after {limit:.0f} s and ended"
        finally:
            # Contestants and loaders are in the same group.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        echo.join(5)
        if not problem and result.exists():
            return dict(json.loads(result.read_text()))
        return {"verdict": "failed", "error": "\n".join([problem or "wrote no result", *said])}


def _echo(process: subprocess.Popen[str], said: deque[str]) -> None:
    assert process.stdout is not None
    for text in process.stdout:
        said.append(text.rstrip())
        print(f"    {text.rstrip()}", file=sys.stderr, flush=True)


def _run_here(wanted: str, settings: Settings, result: Path) -> None:
    """Run a case in this process and write its figures."""
    use_one_device()
    stage = _stage(wanted.partition("/")[0])
    case = next(case for case in stage.cases(settings) if case.id == wanted)
    try:
        figures = stage.run(case, settings)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        traceback.print_exc()
        figures = {"verdict": "out of memory", "error": f"{type(error).__name__}: {error}"}
    result.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
