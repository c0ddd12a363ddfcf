"""Acceptance run: every benchmark of this project, case by case, on the machine at hand.

``python -m benchmarks.acceptance --stages speed,versus --until 540 --out FOLDER --done FILE --data PREPARED``

A case is a stage, a published size of a model, a contestant and a shape. Each runs in a process of its own,
with a deadline of twice its expected time and a minute. The moment it ends, a line of JSON is appended to
``acceptance.jsonl`` in FOLDER: device, versions, commit, figures, verdict, and the last lines of output of
a case that failed. A case that fails, hangs or runs out of memory does not end any other.

``--family`` selects the models. ``speed`` and ``versus`` have cases for each family.

Cases that ``--done`` has for this device are not run again, whatever the commit. Failed ones are, after those
that have not been tried. A case whose expected time passes ``--until`` is not started.

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
GRACE_SECONDS, UNTIL_GRACE_SECONDS = 60, 30
"""Beside twice the expected time, and beyond ``--until``, before a case is ended."""
ERROR_LINES = 15


def main(arguments: Sequence[str] | None = None) -> None:
    started = time.monotonic()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parse(given)
    if options.report is not None:
        from benchmarks.report import write_tables  # needs nothing of what runs cases

        print("\n".join(write_tables(options.report)))
        return
    # The Trainer would spread over all GPUs by itself; everything is measured on one.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    lines = options.out / LINES_FILE
    settings = Settings(options.data, device, options.rehearsal, (*options.done, lines))
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
            say(f"{case.id}: not started, {case.seconds:.0f} s after {elapsed:.0f} s would pass --until")
            verdicts.append("not started")
            continue
        limit = min(2 * case.seconds + GRACE_SECONDS, options.until - elapsed + UNTIL_GRACE_SECONDS)
        say(f"{case.id}: started, about {case.seconds:.0f} s")
        began = time.monotonic()
        result = _run_apart(case, given, limit)
        line = {
            **{name: getattr(case, name) for name in ("stage", "size", "contestant", "shape")},
            "verdict": result.pop("verdict", "measured"),
            "seconds": round(time.monotonic() - began, 1),
            **({"error": result.pop("error")} if "error" in result else {}),
            "figures": result,
            **machine,
            "command": shlex.join(["python", "-m", "benchmarks.acceptance", *given]),
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        with lines.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        say(f"{case.id}: {line['verdict']} in {line['seconds']:.0f} s {line.get('error', '')}")
        verdicts.append(str(line["verdict"]))
    say("; ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts)) or "nothing to do")
    if "failed" in verdicts:
        sys.exit(1)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", default=STAGES, help="stages, with commas; default: %(default)s")
    parser.add_argument("--family", choices=MODEL_FAMILIES, default="esm2", help="default: %(default)s")
    parser.add_argument("--only", nargs="+", default=[], help="only cases whose name has one of these in it")
    until = "seconds from the start after which no case may end"
    parser.add_argument("--until", type=float, default=math.inf, help=until)
    parser.add_argument("--out", type=Path, default=Path("runs/acceptance"), help="folder for the lines")
    parser.add_argument(
        "--done", type=Path, nargs="+", default=[], help="lines whose cases are not run again"
    )
    parser.add_argument("--data", type=Path, default=Path("data/sample"), help="prepared folder")
    parser.add_argument("--rehearsal", action="store_true", help="tiny shapes, to show that every case runs")
    parser.add_argument("--report", type=Path, nargs="+", help="write tables from these files of lines")
    # Of the process of one case.
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _machine(device: torch.device) -> dict[str, Any]:
    from seqlm.training.hardware import environment  # brings transformers, which not every case needs

    found = environment(device)
    name, commit = found.pop("device"), found.pop("git_sha") or "unknown"
    processor = _processor()
    return {
        "device": name if device.type == "cuda" else processor,
        "processor": processor,
        "commit": commit,
        "versions": found,
    }


def _processor() -> str:
    """Name, family and model: virtual machines give one name to processors of several generations."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.is_file() else ""
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    name = found.get("model name", platform.machine())
    return f"{name}, family {found['cpu family']}, model {found['model']}" if "cpu family" in found else name


def _stage(name: str) -> Stage:
    return cast(Stage, import_module(f"benchmarks.stages.{name}"))


def _cases(name: str, settings: Settings) -> list[Case]:
    """Return a stage's cases; one that fails as they do if the stage cannot even be imported."""
    try:
        return _stage(name).cases(settings)
    except Exception as error:
        say(f"{name}: {type(error).__name__}: {error}")
        return [Case(name, "-", "-", "-", 1)]


def _wanted(cases: list[Case], options: argparse.Namespace, machine: dict[str, Any]) -> list[Case]:
    """Return the cases that are neither left out nor done, failed ones last."""
    before = {
        case_id(line): line["verdict"]
        for line in read_lines(options.done)
        if (line["device"], line["rehearsal"]) == (machine["device"], machine["rehearsal"])
    }
    of_family = [case for case in cases if case.size in ("-", *MODEL_FAMILIES[options.family].sizes)]
    wanted = [c for c in of_family if not options.only or any(text in c.id for text in options.only)]
    done = [case for case in wanted if before.get(case.id, "failed") != "failed"]
    if done:
        say(f"done before: {', '.join(case.id for case in done)}")
    return sorted((case for case in wanted if case not in done), key=lambda case: case.id in before)


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
            if (status := process.wait(limit)) != 0:
                name = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
                problem = f"ended with {name}"
        except subprocess.TimeoutExpired:
            problem = f"still running after {limit:.0f} s and ended"
        finally:
            with suppress(ProcessLookupError):  # contestants and loaders, too
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
