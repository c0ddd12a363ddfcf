"""Measure the strength of the test suite by mutants: small faults that some test must find.

Run these in a clean clone, because ``run`` edits its files, one at a time, and restores them::

    python -m tests.strength coverage --out FOLDER             # which test file runs which line
    python -m tests.strength draw --out FOLDER --number 200    # mutants, spread over the packages by lines
    python -m tests.strength run --out FOLDER --coverage FOLDER

``run`` writes one JSON line per mutant to ``results.jsonl`` and continues where it stopped. For each mutant
it runs the test files whose coverage reaches the line, until the first failure or for 60 s. Files named like
the module come first, then cheap ones. Verdicts are ``killed``, ``survived``, ``out of time`` (60 s without a
failure), ``not covered`` and, in a later version of the product, ``line is gone``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.strength.mutants import Mutant, mutants_of

REPOSITORY = Path(__file__).parents[2]
SECONDS = 60
CONFIG = """[run]
branch = false
parallel = true
data_file = {folder}/data/lines
context = ${{TEST_FILE-none}}
patch = _exit
sigterm = true
source =
{sources}
"""
"""Child processes read it, too (COVERAGE_PROCESS_START), and get the test file's name by the environment.
``patch = subprocess`` would give them the context that their parent began with."""


def product_files() -> list[Path]:
    tracked = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [Path(name) for name in tracked if not name.startswith("tests/")]


def measure_coverage(options: argparse.Namespace) -> None:
    """Run the suite under coverage, a folder of tests at a time; a folder that is done is not run again."""
    folder: Path = options.out.resolve()
    (folder / "data").mkdir(parents=True, exist_ok=True)
    packages = sorted({path.parts[0] for path in product_files() if len(path.parts) > 1})
    sources = "\n".join(f"    {REPOSITORY / name}" for name in packages)
    config = folder / "coveragerc"
    config.write_text(CONFIG.format(folder=folder, sources=sources))
    coverage = [sys.executable, "-m", "coverage"]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "COVERAGE_PROCESS_START": str(config),
        "STRENGTH_FOLDER": str(folder),
    }
    pytest = [
        *coverage,
        "run",
        f"--rcfile={config}",
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.strength.by_file",
    ]
    for name, files in _test_folders().items():
        done = folder / f"{name.replace('/', '.')}.done"
        if done.exists():
            continue
        print(f"{time.strftime('%H:%M:%S')} {name}: {len(files)} files", flush=True)
        # A failed test has run its lines, too.
        subprocess.run(
            [*pytest, "-n2", "--dist=loadfile", *files],
            cwd=REPOSITORY,
            env=environment,
            check=False,
        )
        done.touch()
    _combine(folder / "data")


def _combine(folder: Path) -> None:
    """Combine what all processes measured. `coverage combine` would end at a file that a killed one left."""
    from coverage import CoverageData
    from coverage.exceptions import CoverageException

    combined = CoverageData(str(folder / "lines"))
    for file in sorted(folder.glob("lines.*")):
        part = CoverageData(str(file))
        try:
            part.read()
            combined.update(part)
        except CoverageException as error:
            print(f"{file.name} is left out: {error}", flush=True)


def _test_folders() -> dict[str, list[str]]:
    """Test files of ``make test`` by folder."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in sorted((REPOSITORY / "tests").rglob("test_*.py")):
        name = path.relative_to(REPOSITORY)
        if name.parts[1] not in ("cluster", "gpu", "strength"):
            folders[str(name.parent)].append(str(name))
    return folders


def draw(options: argparse.Namespace) -> None:
    """Write ``mutants.jsonl``: in each package as many mutants as its share of the lines, at random lines."""
    by_package: dict[str, list[Path]] = defaultdict(list)
    for path in product_files():
        by_package["/".join(path.parts[:-1][:2]) or "."].append(path)
    lines = {
        package: [
            (path, number) for path in paths for number, _ in enumerate(_lines(path), start=1)
        ]
        for package, paths in by_package.items()
    }
    total = sum(map(len, lines.values()))
    shares = {package: options.number * len(found) / total for package, found in lines.items()}
    counts = {package: int(share) for package, share in shares.items()}
    by_rest = sorted(shares, key=lambda package: counts[package] - shares[package])
    for package in by_rest[: options.number - sum(counts.values())]:
        counts[package] += 1
    generator = random.Random(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "mutants.jsonl").open("w") as file:
        for package, count in sorted(counts.items()):
            for mutant in _drawn(generator, lines[package], count):
                file.write(json.dumps({"seed": options.seed, **mutant.as_json()}) + "\n")


def _drawn(generator: random.Random, lines: list[tuple[Path, int]], count: int) -> Iterator[Mutant]:
    """Mutants at random lines, one per line. Lines with nothing to change are passed over."""
    places = list(lines)
    generator.shuffle(places)
    for path, number in places:
        if count == 0:
            return
        if found := mutants_of(REPOSITORY / path, path, number):
            yield generator.choice(found)
            count -= 1


def run(options: argparse.Namespace) -> None:
    """Try every mutant that ``results.jsonl`` does not have."""
    results: Path = options.out / "results.jsonl"
    done = (
        {_key(json.loads(line)) for line in results.read_text().splitlines()}
        if results.exists()
        else set()
    )
    mutants = [
        json.loads(line) for line in (options.out / "mutants.jsonl").read_text().splitlines()
    ]
    files = product_files()
    seconds: dict[str, float] = {}
    for file in options.coverage.glob("seconds-*.json"):
        seconds |= json.loads(file.read_text())
    for number, fields in enumerate(mutants):
        if _key(fields) in done or number % options.of != options.part:
            continue
        began = time.monotonic()
        tests: list[str] = []
        if mutant := Mutant.from_json(fields).found_again(REPOSITORY, files):
            reaching = (
                test
                for test in _tests_that_reach(options.coverage, mutant)
                if (REPOSITORY / test).exists()
            )
            tests = sorted(
                reaching, key=lambda test: (mutant.path.stem not in test, seconds.get(test, 0))
            )
            verdict, killer = _try(mutant, tests) if tests else ("not covered", "")
        else:
            verdict = "line is gone"
            killer = ""
        line = {
            **fields,
            "found_at": f"{mutant.path}:{mutant.line}" if mutant else "",
            "verdict": verdict,
            "killed_by": killer,
            "test_files": len(tests),
            "seconds": round(time.monotonic() - began, 1),
        }
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            f"{number + 1}/{len(mutants)} {fields['path']}:{fields['line']} {verdict} {killer}",
            flush=True,
        )


def _try(mutant: Mutant, tests: list[str]) -> tuple[str, str]:
    source = REPOSITORY / mutant.path
    original = source.read_bytes()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--no-header",
        "--tb=no",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-p", "no:randomly"]  # cheap files first
    # Bytecode of the mutant must not outlive it.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        source.write_text(mutant.applied(original.decode()))
        process = subprocess.Popen(
            [*command, *tests],
            cwd=REPOSITORY,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
            return ("killed", failed[0]) if failed else ("out of time", "")
    finally:
        source.write_bytes(original)
    if process.returncode == 0:
        return "survived", ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "killed", (failed or output.splitlines()[-1:] or ["no output"])[0][:200]


def _tests_that_reach(folder: Path, mutant: Mutant) -> list[str]:
    """Test files that ran the line of a mutant.

    Lines that run at import, in a thread or in nothing that is measured have no test file. They get the test
    files that run anything in the module. Test files named like the module count in any case: some run
    it in a process with an environment of its own, where nothing is measured.
    """
    from coverage import CoverageData

    data = CoverageData(str(folder / "data" / "lines"))
    data.read()
    measured = next(
        (name for name in data.measured_files() if name.endswith(f"/{mutant.path}")), ""
    )
    by_line = data.contexts_by_lineno(measured)
    found = set(by_line.get(mutant.measured_line, ()))
    if found <= {"", "none"}:
        found = {name for names in by_line.values() for name in names}
    files = {name.rpartition("|")[2] for name in found}  # of this process: "static|dynamic"
    namesakes = {str(path.relative_to(REPOSITORY)) for path in _namesakes(mutant.path.stem)}
    return sorted({name for name in files if name.startswith("tests/")} | namesakes)


def _namesakes(stem: str) -> Iterator[Path]:
    """Test files of a module's name, but for those that need root or a GPU."""
    for path in (REPOSITORY / "tests").rglob(f"test_{stem}.py"):
        if not {"cluster", "gpu"} & set(path.parts):
            yield path


def _lines(path: Path) -> list[str]:
    return (REPOSITORY / path).read_text().splitlines()


def _key(fields: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(fields[name] for name in ("path", "line", "column", "after"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, function in (("coverage", measure_coverage), ("draw", draw), ("run", run)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        command.add_argument("--out", type=Path, required=True, help="folder for the results")
        if name == "draw":
            command.add_argument("--number", type=int, default=200)
            command.add_argument("--seed", type=int, default=20)
        if name == "run":
            command.add_argument(
                "--coverage", type=Path, required=True, help="folder of `coverage`"
            )
            command.add_argument(
                "--part", type=int, default=0, help="this process's share, with --of"
            )
            command.add_argument(
                "--of", type=int, default=1, help="processes, each in a clone of its own"
            )
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
