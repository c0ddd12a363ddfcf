"""Run one of Slurm's commands for a SageMaker Studio space, as the session's user.

A session document of Systems Manager runs this on the controller as one user of the cluster. Its only
argument is the request, as base64 of JSON, so that no shell interprets any part of it. It can do only what
the user may do in Slurm.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAMS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
"""Commands that end on their own, without srun and salloc, which need a terminal."""
# First words of the lines around the answer. The request's random token follows.
BEGINS = "slurm-answer-begins"
ENDS = "slurm-answer-ends"


def main() -> int:
    request = json.loads(base64.b64decode(sys.argv[1], validate=True))
    token = request["token"]
    print(f"\n{BEGINS} {token}", flush=True)
    status = run(request)
    print(f"\n{ENDS} {token} {status}", flush=True)
    return status


def run(request: dict[str, Any]) -> int:
    """Run the command with its output, and return its exit status."""
    program = request["program"]
    arguments = list(request["arguments"])
    script = request.get("script")
    if program not in PROGRAMS:
        print(f"{program}: only {', '.join(PROGRAMS)} can be run from here", file=sys.stderr)
        return 2
    folder = Path(request["folder"])
    if not os.access(folder, os.X_OK):
        print(
            f"{folder} is not a folder that {os.environ.get('USER', 'you')} may enter",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="studio-") as temporary:
        if script is not None:
            # The script keeps its name, which is the job's by default.
            path = Path(temporary, Path(script["name"]).name)
            path.write_text(script["text"])
            arguments[script["index"]] = str(path)
        return subprocess.run(
            [program, *arguments], cwd=folder, stdin=subprocess.DEVNULL
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
