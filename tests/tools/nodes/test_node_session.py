"""Scripts run through a session: they arrive whole, and their status comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tools.nodes.node_sessions import NodeSessions
from tools.nodes.node_session import DOCUMENT, BrokenSession, NoSession, run_on_node

REPOSITORY = Path(__file__).parents[3]
START = [
    "aws",
    "ssm",
    "start-session",
    "--target",
    "sagemaker-cluster:abc_workers-i-1",
    "--region",
    "us-west-2",
]
AWKWARD = ["it's", 'a "b"', "$HOME", "`id`", "a;b", "x\\n", "*", "", "é"]
SCRIPT = """#!/usr/bin/env bash
# It's a script with "quotes", 'quotes', $variables and \\\\ backslashes.
set -u
for word; do printf '<%s>\\n' "$word"; done
read -r line || echo "nothing to read"
echo 'an error' >&2
exit 7
"""


@pytest.fixture(params=["sh", "words"])
def sessions(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> NodeSessions:
    """With agents of both kinds: one gives the command to a shell, one splits it into words."""
    found = NodeSessions(tmp_path / "aws")
    if request.param == "words":
        found.set("splits-words")
    monkeypatch.setenv("PATH", found.path)
    return found


def test_script_and_arguments_arrive_as_they_are(sessions: NodeSessions) -> None:
    said: list[str] = []
    assert run_on_node(START, SCRIPT, AWKWARD, said.append) == 7
    assert said == [*(f"<{word}>" for word in AWKWARD), "nothing to read", "an error"]
    (call,) = sessions.calls
    assert call[:6] == START[1:] and call[6:8] == ["--document-name", DOCUMENT]


def test_shows_lines_while_the_script_runs(sessions: NodeSessions, tmp_path: Path) -> None:
    """The script waits until its first line has been shown."""
    go_on = tmp_path / "go-on"

    def say(line: str) -> None:
        if line == "first":
            go_on.touch()

    script = f"echo first; until [[ -e {go_on} ]]; do sleep 0.05; done"
    assert run_on_node(START, script, [], say) == 0


@pytest.mark.parametrize("script", ["exit 0", "true", "exec true"])
def test_reports_success(sessions: NodeSessions, script: str) -> None:
    assert run_on_node(START, script, [], print) == 0


def test_shows_long_output_whole_and_in_order(sessions: NodeSessions) -> None:
    said: list[str] = []
    assert run_on_node(START, "seq 20000", [], said.append) == 0
    assert said == [str(number) for number in range(1, 20001)]


def test_a_session_that_ends_early_is_no_success(sessions: NodeSessions) -> None:
    sessions.set("breaks")
    with pytest.raises(BrokenSession, match="the session ended before the script"):
        run_on_node(START, "true", [], print)


def test_a_session_that_does_not_start_says_why(sessions: NodeSessions) -> None:
    sessions.set("refuses")
    with pytest.raises(
        NoSession, match=r"no session could be started: An error occurred \(TargetNotConn"
    ):
        run_on_node(START, "true", [], print)


def test_a_marker_without_our_word_is_text(sessions: NodeSessions) -> None:
    said: list[str] = []
    assert run_on_node(START, "echo session-script-ended 0123 0; exit 3", [], said.append) == 3
    assert said == ["session-script-ended 0123 0"]


def test_ctrl_c_ends_the_session_and_not_the_script(sessions: NodeSessions, tmp_path: Path) -> None:
    program = f"""
from tools.nodes.node_session import run_on_node
script = "echo begun; until [[ -e {tmp_path}/go-on ]]; do sleep 0.05; done; touch {tmp_path}/done"
run_on_node({START!r}, script, [], lambda line: print(line, flush=True))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=sessions.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # What a shell runs in the background ignores it, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert [
        "ssm",
        "terminate-session",
        "--session-id",
        "ada-0123",
        "--region",
        "us-west-2",
    ] in sessions.calls
    assert not (tmp_path / "done").exists()
    (tmp_path / "go-on").touch()
    deadline = time.monotonic() + 60
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
