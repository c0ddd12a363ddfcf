"""Run a Slurm command on the cluster's controller through Systems Manager, as the space's user there.

``slurm_session.py sbatch --nodes=2 train.sh`` sends the script too. The job's folder is the current folder if
the cluster sees it, otherwise the space's partition. lifecycle/slurm/studio/submit.py receives the request.
"""

import base64
import json
import os
import pty
import re
import secrets
import sys
from pathlib import Path
from typing import Any

from space import Space, SpaceError

SETTINGS = Path(__file__).with_name("session.json")
# First words of the lines around the answer, as in lifecycle/slurm/studio/submit.py.
BEGINS = "slurm-answer-begins"
ENDS = "slurm-answer-ends"
MAX_REQUEST = 40_000
"""Limit in characters. Session Manager allows 65,535 (``SessionManagerParameterValue``), a document fewer."""
SHOWN_CHARACTERS = 600
"""Length of the shown end of a session without an answer."""
FLAGS = frozenset("HhIkOQsVvWX")
"""One-letter options of sbatch without a value."""
_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def main() -> int:
    space = Space(json.loads(SETTINGS.read_text()))
    try:
        return run(space, sys.argv[1], sys.argv[2:])
    except SpaceError as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        return 1


def run(space: Space, program: str, arguments: list[str]) -> int:
    """Run the command on the controller, and return its exit status."""
    token = secrets.token_hex(8)
    request: dict[str, Any] = {
        "token": token,
        "program": program,
        "arguments": arguments,
        "folder": folder(space, Path.cwd()),
    }
    if program == "sbatch":
        request["script"] = batch_script(arguments)
    text = base64.b64encode(json.dumps(request).encode()).decode()
    if len(text) > MAX_REQUEST:
        raise SpaceError(
            f"the request with the script and its arguments has {len(text)} characters; at most {MAX_REQUEST}"
            " are allowed: move long parts to a file in the partition, and run that from the script"
        )
    said = session(start_session(space, text))
    answer = re.search(
        rf"^{BEGINS} {token}\n(.*)^{ENDS} {token} (\d+)$", said, re.DOTALL | re.MULTILINE
    )
    if not answer:
        raise SpaceError(
            f"the controller has not answered: {said.strip()[-SHOWN_CHARACTERS:] or 'no output'}"
        )
    sys.stdout.write(answer[1].removesuffix("\n"))
    return int(answer[2])


def folder(space: Space, here: Path) -> str:
    """Return the cluster's path of the current folder, or of the partition if the cluster does not see it."""
    partition = str(space.settings["partition"])
    mounted = space.path(partition).resolve()
    inside = here.resolve()
    if inside == mounted or mounted in inside.parents:
        return str(Path(partition, inside.relative_to(mounted)))
    return partition


def batch_script(arguments: list[str]) -> dict[str, Any] | None:
    """Return the script among sbatch's arguments with its index, or None with --wrap.

    Raises:
        SpaceError: if the first argument that is not an option is not a file.
    """
    skip = False
    for index, argument in enumerate(arguments):
        if skip:
            skip = False
        elif argument.startswith("--wrap"):
            return None
        elif argument.startswith("-"):
            skip = len(argument) == 2 and argument[1] not in FLAGS
        else:
            path = Path(argument)
            if not path.is_file():
                raise SpaceError(
                    f"{argument} would be the script, and is not a file here; write an option with its"
                    " value as --nodes=2"
                )
            return {"index": index, "name": path.name, "text": path.read_text()}
    raise SpaceError("name a script, or --wrap='command'")


def start_session(space: Space, request: str) -> list[str]:
    """Return the command that starts a session on the running controller.

    Raises:
        SpaceError: if the controller is not running.
    """
    settings = space.settings
    cluster = ("--cluster-name", settings["cluster_name"], "--output", "json")
    arn = json.loads(space.aws("sagemaker", "describe-cluster", *cluster))["ClusterArn"]
    nodes = json.loads(space.aws("sagemaker", "list-cluster-nodes", *cluster))[
        "ClusterNodeSummaries"
    ]
    group = settings["controller_group"]
    running = [
        node["InstanceId"]
        for node in nodes
        if node["InstanceGroupName"] == group and node["InstanceStatus"]["Status"] == "Running"
    ]
    if not running:
        raise SpaceError(f"the cluster's controller (group {group}) is not running")
    target = f"sagemaker-cluster:{arn.rsplit('/', 1)[1]}_{group}-{running[0]}"
    return [
        "aws",
        "ssm",
        "start-session",
        "--region",
        settings["region"],
        "--target",
        target,
        "--document-name",
        settings["document"],
        "--parameters",
        json.dumps({"request": [request]}),
    ]


def session(command: list[str]) -> str:
    """Return a session's output without control characters; without a terminal, the plugin loses the end."""
    said = bytearray()

    def keep(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        said.extend(data)
        return b"" if not data else b"\0"

    stdin = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    sink = os.open(os.devnull, os.O_WRONLY)
    stdout = os.dup(1)
    try:
        os.dup2(null, 0)
        # pty.spawn copies everything to the standard output, where only the answer should appear.
        sys.stdout.flush()
        os.dup2(sink, 1)
        pty.spawn(command, keep)
    finally:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        for descriptor in (stdin, null, sink, stdout):
            os.close(descriptor)
    return _CONTROL.sub("", said.decode(errors="replace")).replace("\r", "")


if __name__ == "__main__":
    sys.exit(main())
