"""`make charts` refuses content that differs from the pins, and reports failed downloads."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.lifecycle.https_server import body
from tests.manifests.helm_runs import helm
from tests.tools.kubernetes.chart_upstream import (
    FOLDER,
    Run,
    Server,
    Upstream,
    packaged,
    unfinished,
    whole,
)
from tools.kubernetes import charts

REPOSITORY = Path(__file__).parents[3]
WAIT_SECONDS = 60


def test_an_archive_of_another_hash_is_refused(
    make_charts: Run, server: Server, cache: Path, table: Path
) -> None:
    server.answer = body(packaged(text="tampered with"))
    with pytest.raises(
        ValueError, match=r"has SHA-256 [0-9a-f]{64} \(\d+ bytes\), not [0-9a-f]{64}.*not kept"
    ):
        make_charts()
    assert list(cache.rglob("*.tgz")) == []
    with pytest.raises(ValueError, match=r"chart main is not in .*; run make charts"):
        whole(cache, table)


def test_a_tampered_object_of_the_commit_is_refused(
    make_charts: Run, upstream: Upstream, cache: Path
) -> None:
    """The client hashes the server's objects for the commit's id again."""
    blob, other = (
        subprocess.run(
            ["git", "rev-parse", f"{commit}:{FOLDER}/values.yaml"],
            cwd=upstream.repository,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for commit in (upstream.pinned, "main")
    )
    objects = upstream.repository / ".git" / "objects"
    victim = objects / blob[:2] / blob[2:]
    victim.chmod(0o644)
    shutil.copyfile(objects / other[:2] / other[2:], victim)
    with pytest.raises(
        ValueError, match=f"at {upstream.pinned[:12]} failed: .*did not send all necessary objects"
    ):
        make_charts()
    assert not (cache / "main").exists()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_leaves_nothing_that_looks_whole_and_the_next_one_continues(
    make_charts: Run,
    upstream: Upstream,
    server: Server,
    cache: Path,
    table: Path,
    tmp_path: Path,
    number: int,
) -> None:
    """It is stopped while git fetches: a git of the PATH's that tells, and waits to be killed."""
    programs = tmp_path / "programs"
    waiting = tmp_path / "waiting"
    programs.mkdir()
    slow = programs / "git"
    slow.write_text(
        f'#!/bin/bash\ncase " $* " in *" fetch "*) touch {waiting}; exec sleep {WAIT_SECONDS};; esac\n'
        f'exec {shutil.which("git")} "$@"\n'
    )
    slow.chmod(0o755)
    upstream.write_table(table)
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.kubernetes.charts", "--table", table, "--cache", cache],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        start_new_session=True,
        # What a shell runs in the background ignores Ctrl-C, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        seen = threading.Event()
        while not waiting.exists() and process.poll() is None and not seen.wait(0.05):
            pass
        assert unfinished(cache) != []
    finally:
        os.killpg(process.pid, number)
        process.wait(WAIT_SECONDS)
    with pytest.raises(ValueError, match=r"chart main is not in .*; run make charts"):
        whole(cache, table)
    make_charts()
    assert whole(cache, table)
    assert unfinished(cache) == []
    assert server.requests == 1  # the archive was there already


def test_half_an_archive_is_refused(make_charts: Run, server: Server, cache: Path) -> None:
    def cut(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(packaged())))
        request.end_headers()
        request.wfile.write(packaged()[:20])

    server.answer = cut
    with pytest.raises(ValueError, match=r"could not be fetched: received 20 of [0-9]+ bytes"):
        make_charts()
    server.answer = body(packaged())
    make_charts()


def test_two_runs_at_once_are_one(make_charts: Run, cache: Path) -> None:
    with charts._alone_in(cache), pytest.raises(ValueError, match="another make charts is running"):
        make_charts()


def test_reports_unknown_dependencies_and_unused_archives(
    make_charts: Run, upstream: Upstream
) -> None:
    with pytest.raises(
        ValueError,
        match=r"depends on certificates v1.18.2 of oci://charts.example/certificates, which",
    ):
        make_charts(left_out={})
    git = upstream.table()["main"]["git"]
    upstream.write_chart("alone", dependencies=[])
    with pytest.raises(
        ValueError, match=r"the table has device-plugin, but Chart.yaml has no such"
    ):
        make_charts(git={**git, "commit": upstream.commit()})


def test_a_chart_that_helm_cannot_render_is_refused(
    make_charts: Run, upstream: Upstream, cache: Path
) -> None:
    helm()
    (upstream.repository / FOLDER / "templates" / "broken.yaml").write_text(
        "{{ .Values.text | nosuchfunction }}"
    )
    git = {**upstream.table()["main"]["git"], "commit": upstream.commit()}
    with pytest.raises(
        ValueError, match=r'helm cannot render chart main: .*"nosuchfunction" not defined'
    ):
        make_charts(git=git)
    assert not (cache / "main").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"commit": "0" * 40}, "at 000000000000 failed: .*not our ref"),
        (
            {"repository": "file:///nonexistent"},
            "git of file:///nonexistent at .* failed: .*https_proxy",
        ),
        (
            {"repository": "https://host.invalid/x.git"},
            "failed: .*Could not resolve host: host.invalid",
        ),
        ({"folder": "no/such"}, "failed: error: pathspec 'no/such' did not match"),
        ({"folder": "helm_chart"}, "helm_chart of file://.* has no Chart.yaml"),
    ],
)
def test_reports_what_git_cannot_fetch(
    make_charts: Run, upstream: Upstream, cache: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_charts(git={**upstream.table()["main"]["git"], **changes})
    assert not (cache / "main").exists() and unfinished(cache) == []


def test_reports_missing_git(make_charts: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ValueError, match="git is missing: install it"):
        make_charts()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (body(b"", 407), "answers 407 Proxy Authentication Required; .*https_proxy"),
        (None, "Connection refused"),
    ],
)
def test_reports_a_missing_network(
    make_charts: Run, upstream: Upstream, server: Server, answer: Any, message: str
) -> None:
    changes = {}
    if answer:
        server.answer = answer
    else:
        [archive] = upstream.table()["main"]["archives"]
        changes = {"archives": [{**archive, "url": "http://127.0.0.1:9/plugin.tgz"}]}
    with pytest.raises(ValueError, match=message):
        make_charts(**changes)


def test_reports_a_full_disk(
    make_charts: Run, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(cache / "lock.json"))

    monkeypatch.setattr(charts, "write_lock", full)
    with pytest.raises(
        ValueError, match=r"lock.json: No space left on device; nothing unfinished was kept"
    ):
        make_charts()
    assert not (cache / "main").exists() and unfinished(cache) == []


def test_the_command_gives_one_message(upstream: Upstream, cache: Path, table: Path) -> None:
    upstream.write_table(table, left_out={})
    done = subprocess.run(
        [sys.executable, "-m", "tools.kubernetes.charts", "--table", table, "--cache", cache],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: Chart.yaml depends on certificates")
    assert "Traceback" not in done.stderr
