"""Run a script as root on a node through Session Manager, and return its exit status.

Sessions do not report an exit status, so the script's last line contains it. Other ways do not work:

* Run Command does not reach HyperPod's nodes.
* AWS-StartNonInteractiveCommand holds the output back until the command has ended (the agent's source). A
  session without output may be closed before that.
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
"""First word of the line with the script's status. A random token follows, which is in no other text."""
SESSION_STARTED = re.compile(r"Starting session with SessionId: (\S+)")
AROUND = re.compile(r"(?:Starting|Exiting) session with SessionId: ", re.IGNORECASE)
"""Lines of the aws command before and after the script's output."""
CONTROL_SEQUENCES = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
)
"""Control sequences of a terminal."""
SECONDS_TO_TERMINATE = 30
"""Time limit of the request that ends a session."""
SECONDS_TO_END = 5.0
"""Time that a process has to end after a signal."""
CHUNK_BYTES = 65536


class NoSession(ValueError):
    """A session could not be started, so nothing ran on the node."""


class BrokenSession(ValueError):
    """A session ended before its script."""


def remote_command(script: str, arguments: Sequence[str], token: str) -> str:
    """Return one command for the node, without special characters outside its single quotes.

    Some agents pass the command to `sh -c`, others split it into words themselves. The script runs in a new
    session that ignores a hangup, so that it continues if the connection breaks.

    Args:
        script: bash script.
        arguments: arguments of the script.
        token: random word in the line with the script's status.
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

    Args:
        start_session: aws command that starts a session, without a document.
        script: bash script.
        arguments: arguments of the script.
        say: function that receives each line.

    Raises:
        NoSession: if no session can be started.
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
            if session_id:
                _terminate(session_id, start_session)
            raise
    if status is not None:
        return status
    if not session_id:
        raise NoSession(f"no session could be started: {last or 'the aws command printed nothing'}")
    last_line = f"; its last line: {last}" if last else ""
    raise BrokenSession(
        f"the session ended before the script; the script may still be running{last_line}"
    )


def _terminate(session_id: str, start_session: Sequence[str]) -> None:
    """End a session, which Session Manager would otherwise end after 20 minutes without requests."""
    region_and_profile = start_session[start_session.index("--region") :]
    subprocess.run(
        ["aws", "ssm", "terminate-session", "--session-id", session_id, *region_and_profile],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=SECONDS_TO_TERMINATE,
    )


@contextlib.contextmanager
def _in_terminal(command: Sequence[str]) -> Iterator[Iterator[str]]:
    """Run a command in a new terminal, and give its lines.

    Without a terminal, session-manager-plugin loses the last lines.
    """
    our_end, its_end = pty.openpty()
    tty.setraw(its_end)
    process = subprocess.Popen(
        command, stdin=its_end, stdout=its_end, stderr=its_end, start_new_session=True
    )
    os.close(its_end)
    try:
        yield _lines(our_end)
        process.wait()
    finally:
        if process.poll() is None:
            _stop(process)
        os.close(our_end)


def _lines(descriptor: int) -> Iterator[str]:
    rest = b""
    while True:
        try:
            received = os.read(descriptor, CHUNK_BYTES)
        except OSError:
            # Linux raises it when all processes have closed the terminal.
            received = b""
        *lines, rest = (rest + received).split(b"\n")
        is_end = not received
        if is_end:
            lines.append(rest)
        for line in lines:
            yield CONTROL_SEQUENCES.sub("", line.decode(errors="replace")).strip("\r")
        if is_end:
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the aws command and the plugin that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
            return


def start_session(
    cluster: ClusterNodes, node: Node, *, region: str, profile: str | None
) -> list[str]:
    """Return the start of the command for a session, without the document that defines the session."""
    command = ["aws", "ssm", "start-session", "--target", cluster.target(node), "--region", region]
    return [*command, "--profile", profile] if profile else command


def check_programs() -> None:
    """Raise ValueError unless the aws command and its plugin for sessions are installed."""
    aws = shutil.which("aws")
    if aws is None:
        raise ValueError("the aws command is missing; install AWS CLI version 2 (docs/deploy.md)")
    version = subprocess.run(
        [aws, "--version"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not version.startswith("aws-cli/2."):
        raise ValueError(
            f"{aws} is {version}; HyperPod sessions need AWS CLI version 2 (docs/deploy.md)"
        )
    if shutil.which("session-manager-plugin") is None:
        raise ValueError(
            "session-manager-plugin is missing; the aws command starts it (docs/deploy.md)"
        )
