"""Several submissions of one version bring its code at the same time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tools.jobs.code_version import BRING_CODE

SLOW_AWS = """#!/bin/bash
folder="${@: -1}"
sleep 1
echo "print(1)" > "${folder}/train.py"
"""


def test_four_first_submissions_of_one_version_succeed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/aws"
    program.write_text(SLOW_AWS)
    program.chmod(0o755)
    folder = tmp_path / "code/version"
    started = [
        subprocess.Popen(
            ["bash", str(BRING_CODE), "us-east-1", "s3://bucket/code", str(folder)],
            env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(4)
    ]
    printed = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4, printed
    assert printed == [""] * 4
    assert [path.name for path in folder.parent.iterdir()] == ["version"]
    assert [path.name for path in folder.iterdir()] == ["train.py"], "nothing is moved into it"
