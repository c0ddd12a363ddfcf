"""A failure of a fuzz test names its seed, which repeats it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

FAILING = """
def test_odd(rounds):
    for chance in rounds(9):
        print("a round")
        assert chance.random() > 0.3
"""


def run(folder: Path, **variables: str) -> str:
    (folder / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (folder / "test_odd.py").write_text(FAILING)
    kept = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | {
        name: value for name, value in os.environ.items() if not name.startswith(("FUZZ_", "PYTEST_"))
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_odd.py"]
    done = subprocess.run(
        command, cwd=folder, env=kept | variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done.stdout
    return done.stdout


def test_seeds(tmp_path: Path) -> None:
    first = next(seed for seed in range(9) if random.Random(seed).random() <= 0.3)
    told = run(tmp_path)
    assert f"{first}; FUZZ_SEED={first} repeats this round alone" in told
    assert told.count("\na round") == first + 1
    told = run(tmp_path, FUZZ_SEED=str(first))
    assert told.count("\na round") == 1 and f"FUZZ_SEED={first} repeats" in told
    told = run(tmp_path, FUZZ_SECONDS="600")
    new = int(told.partition("FUZZ_SEED=")[2].split()[0])
    assert random.Random(new).random() <= 0.3
