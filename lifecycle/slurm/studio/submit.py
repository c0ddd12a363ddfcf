"""Runs one of Slurm's commands for a space of SageMaker Studio, as the user whom the session was opened for.

A session document of Systems Manager runs this on the controller, as one user of the cluster, and hands over
nothing but the request: base64 of JSON, so that no shell finds anything in it. What the user may do in Slurm
is all that it can do.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAMS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
"""Those that end by themselves; srun and salloc want a terminal of their own."""
BEGINS, ENDS = "slurm-answer-begins", "slurm-answer-ends"
"""Words of the lines around the answer; a random word follows, which the request brings."""


def main() -> int:
    request = json.loads(base64.b64decode(sys.argv[1], validate=True))
    token = request["token"]
    print(f"\n{BEGINS} {token}", flush=True)
    status = run(request)
    print(f"\n{ENDS} {token} {status}", flush=True)
    return status


def run(request: dict[str, Any]) -> int:
    """The exit status of the command, which speaks for itself."""
    program, arguments, script = request["program"], list(request["arguments"]), request.get("script")
    if program not in PROGRAMS:
        print(f"{program}: only {', '.join(PROGRAMS)} can be run from here", file=sys.stderr)
        return 2
    folder = Path(request["folder"])
    if not os.access(folder, os.X_OK):
        print(f"{folder} is not a folder that {os.environ.get('USER', 'you')} may enter", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="studio-") as temporary:
        if script is not None:
            # Of its own name, which is the job's unless the script says another one.
            path = Path(temporary, Path(script["name"]).name)
            path.write_text(script["text"])
            arguments[script["index"]] = str(path)
        return subprocess.run([program, *arguments], cwd=folder, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    sys.exit(main())
