"""Running a script as root on a node through Session Manager, whose sessions say nothing of its exit status.

Run Command does not reach HyperPod's nodes. AWS-StartNonInteractiveCommand keeps what a command says until it
has ended (the agent's source has it so), by when a session in which nothing was said may have been ended.
"""

import base64
import contextlib
import json
import os
import pty
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import tty
from collections.abc import Callable, Iterator, Sequence

from tools.nodes.cluster_nodes import ClusterNodes, Node

DOCUMENT = "AWS-StartInteractiveCommand"
ENDED = "session-script-ended"
"""First word of the line with the script's status; a random word follows, which no other text has."""
SESSION_STARTED = re.compile(r"Starting session with SessionId: (\S+)")
AROUND = re.compile(r"(?:Starting|Exiting) session with SessionId: ", re.IGNORECASE)
CONTROL_SEQUENCES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class NoSession(ValueError):
    """No session could be started: nothing was begun on the node."""


class BrokenSession(ValueError):
    """A session that has ended before the script has."""


def remote_command(script: str, arguments: Sequence[str], token: str) -> str:
    """Return one command for the node, without special characters outside its single quotes.

    The agent gives it to `sh -c` or splits it into words itself, by the kind of agent. The script gets a
    session of its own that ignores a hangup, because it must continue when the connection breaks.
    """
    whole = (
        f"set -- {shlex.join(arguments)}\n({script}\n) < /dev/null\nstatus=$?\n"
        f"printf '\\n{ENDED} {token} %s\\n' $status\n"
    )
    encoded = base64.b64encode(whole.encode()).decode()
    return f'sudo setsid --fork --wait bash -c \'trap "" HUP; eval "$(echo {encoded} | base64 --decode)"\''


def run_on_node(
    start_session: Sequence[str], script: str, arguments: Sequence[str], say: Callable[[str], None]
) -> int:
    """Run a bash script as root, report each line of its output, and return its exit status.

    ``start_session`` is the aws command with its target, without a document.

    Raises:
        NoSession: if none can be started.
        BrokenSession: if the session ends without the script's status; the script may still be running.
    """
    token = secrets.token_hex(8)
    parameters = json.dumps({"command": [remote_command(script, arguments, token)]})
    command = [*start_session, "--document-name", DOCUMENT, "--parameters", parameters]
    status: int | None = None
    session_id = ""
    last = ""
    with _in_terminal(command) as lines:
        try:
            for line in lines:
                started = SESSION_STARTED.search(line)
                session_id = started[1] if started else session_id
                if line.startswith(f"{ENDED} {token} "):
                    status = int(line.split()[2])
                elif line and not AROUND.match(line):
                    last = line
                    say(line)
        except KeyboardInterrupt:
            # Otherwise Session Manager ends it after 20 minutes without requests.
            if session_id:
                options = start_session[start_session.index("--region") :]
                end = ["aws", "ssm", "terminate-session", "--session-id", session_id, *options]
                subprocess.run(end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
            raise
    if status is not None:
        return status
    if not session_id:
        raise NoSession(f"no session could be started: {last or 'the aws command said nothing'}")
    words = f"; its last words: {last}" if last else ""
    raise BrokenSession(f"the session ended before the script did; the script may still be running{words}")


@contextlib.contextmanager
def _in_terminal(command: Sequence[str]) -> Iterator[Iterator[str]]:
    """A command's lines, from a terminal of its own: session-manager-plugin loses the last ones without."""
    ours, its = pty.openpty()
    tty.setraw(its)
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    try:
        yield _lines(ours)
        process.wait()
    finally:
        if process.poll() is None:
            _stop(process)
        os.close(ours)


def _lines(descriptor: int) -> Iterator[str]:
    rest = b""
    while True:
        try:
            received = os.read(descriptor, 65536)
        except OSError:  # Linux raises it when no process has the terminal open any more.
            received = b""
        *whole, rest = (rest + received).split(b"\n")
        for line in whole if received else [*whole, rest]:
            yield CONTROL_SEQUENCES.sub("", line.decode(errors="replace")).strip("\r")
        if not received:
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """With the plugin that the aws command has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
            return


def start_session(cluster: ClusterNodes, node: Node, *, region: str, profile: str | None) -> list[str]:
    """Return the start of the command for a session, without the document that defines the session."""
    command = ["aws", "ssm", "start-session", "--target", cluster.target(node), "--region", region]
    return [*command, "--profile", profile] if profile else command


def check_programs() -> None:
    """Raise ValueError unless the two programs behind a session are installed."""
    aws = shutil.which("aws")
    if aws is None:
        raise ValueError("the aws command is missing; install AWS CLI version 2 (docs/deploy.md)")
    version = subprocess.run([aws, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if not version.startswith("aws-cli/2."):
        raise ValueError(f"{aws} is {version}; HyperPod sessions need AWS CLI version 2 (docs/deploy.md)")
    if shutil.which("session-manager-plugin") is None:
        raise ValueError("session-manager-plugin is missing; the aws command starts it (docs/deploy.md)")
