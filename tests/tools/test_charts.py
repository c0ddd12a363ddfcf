"""`make charts` on a real git and a real helm: what is pinned comes, whole, once, and nothing else counts."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.chart_cache import CACHE, chart_folder, content_sha256, files_of
from config.charts import load_charts
from tests.charts.helm_runs import helm
from tests.lifecycle.https_server import body, served
from tests.tools.chart_upstream import FOLDER, LEFT_OUT, PLUGIN, Upstream, packaged
from tools import charts
from tools.helm import run_helm

REPOSITORY = Path(__file__).parents[2]
WAIT_SECONDS = 60
Run = Callable[..., str]


class Server:
    """Gives the plugin's archive, or what a test puts in its place, and counts."""

    def __init__(self) -> None:
        self.answer = body(packaged())
        self.requests = 0

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        self.answer(request)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def upstream(tmp_path: Path, server: Server) -> Iterator[Upstream]:
    with served(server) as url:
        yield Upstream(tmp_path, f"{url}/plugin.tgz", packaged())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Empty but for helm, whose unpacking takes a second."""
    cache = tmp_path / "cache"
    if helm().parent.parent == CACHE:
        cache.mkdir()
        (cache / "bin").symlink_to(helm().parent)
    return cache


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "charts.json"


@pytest.fixture
def make_charts(
    upstream: Upstream,
    cache: Path,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run the command on the upstream's table with changes in it; returns what it printed."""

    def run(**changes: Any) -> str:
        upstream.write_table(table, **changes)
        monkeypatch.setattr(sys, "argv", ["charts", "--table", str(table), "--cache", str(cache)])
        assert charts.main() == 0
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run


def unfinished(cache: Path) -> list[Path]:
    return list(cache.glob(f"{charts.UNFINISHED}*"))


def whole(cache: Path, table: Path) -> Path:
    return chart_folder("main", cache=cache, table=table)


def test_the_pinned_commit_comes_and_helm_renders_it_without_a_network(
    make_charts: Run, cache: Path, table: Path
) -> None:
    printed = make_charts()
    rendered = run_helm(helm(), "template", "release", str(whole(cache, table)))
    assert rendered.returncode == 0, rendered.stderr
    texts = {
        document["metadata"]["name"]: document["data"]["text"]
        for document in yaml.safe_load_all(rendered.stdout)
    }
    assert texts == {"main": "first", "own": "own", PLUGIN: "of the plugin"}
    assert f"without {LEFT_OUT}: comes by itself" in printed
    assert "device-plugin 0.5.20 of the table; Chart.yaml asks for 0.5.10" in printed


def test_a_switch_of_the_upstream_chart_still_holds(make_charts: Run, cache: Path, table: Path) -> None:
    """helm installs a packaged chart of a version that was not asked for whatever its condition says."""
    make_charts()
    rendered = run_helm(
        helm(), "template", "release", str(whole(cache, table)), "--set", "device-plugin.enabled=false"
    )
    assert {document["metadata"]["name"] for document in yaml.safe_load_all(rendered.stdout)} == {
        "main",
        "own",
    }


def test_nothing_else_of_the_repository_comes(make_charts: Run, cache: Path, table: Path) -> None:
    make_charts()
    assert files_of(whole(cache, table)).keys() == {
        "Chart.yaml",
        "values.yaml",
        "templates/text.yaml",
        "charts/own/Chart.yaml",
        "charts/own/values.yaml",
        "charts/own/templates/text.yaml",
        "charts/device-plugin-0.5.20.tgz",
    }


def test_a_moved_branch_changes_nothing(
    make_charts: Run, upstream: Upstream, cache: Path, table: Path
) -> None:
    upstream.move_branch()
    make_charts()
    assert yaml.safe_load((whole(cache, table) / "values.yaml").read_text()) == {"text": "first"}


def test_a_branch_cannot_be_pinned(make_charts: Run, upstream: Upstream) -> None:
    git = upstream.table()["main"]["git"]
    with pytest.raises(ValueError, match=r"main\.git\.commit: got 'main'"):
        make_charts(git={**git, "commit": "main"})


def test_the_second_run_asks_nobody(make_charts: Run, upstream: Upstream, server: Server) -> None:
    make_charts()
    shutil.rmtree(upstream.repository)
    assert make_charts() == "main: there already, unchanged\n"
    assert server.requests == 1


@pytest.mark.parametrize("change", ["changed", "removed", "added", "linked"])
def test_a_change_in_the_cache_is_noticed_and_mended(
    make_charts: Run, cache: Path, table: Path, change: str
) -> None:
    make_charts()
    values = whole(cache, table) / "values.yaml"
    match change:
        case "changed":
            values.write_text("text: another\n")
        case "removed":
            values.unlink()
        case "added":
            values.with_name("more.yaml").write_text("")
        case "linked":
            elsewhere = cache / "elsewhere.yaml"
            values.rename(elsewhere)
            values.symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"(changed after it was fetched|not a plain file).*run make charts"):
        whole(cache, table)
    make_charts()
    assert yaml.safe_load((whole(cache, table) / "values.yaml").read_text()) == {"text": "first"}


def test_a_new_pin_replaces_what_was_there(
    make_charts: Run, upstream: Upstream, cache: Path, table: Path
) -> None:
    make_charts()
    upstream.write_chart("third")
    newer = {**upstream.table()["main"]["git"], "commit": upstream.commit()}
    upstream.write_table(table, git=newer)
    with pytest.raises(ValueError, match="another one than the table asks for; run make charts"):
        whole(cache, table)
    make_charts(git=newer)
    assert yaml.safe_load((whole(cache, table) / "values.yaml").read_text()) == {"text": "third"}
    assert unfinished(cache) == []


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
    """What a server hands out under the commit's id is hashed again on this side."""
    blob = subprocess.run(
        ["git", "rev-parse", f"{upstream.pinned}:{FOLDER}/values.yaml"],
        cwd=upstream.repository,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    other = subprocess.run(
        ["git", "rev-parse", f"main:{FOLDER}/values.yaml"],
        cwd=upstream.repository,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    objects = upstream.repository / ".git" / "objects"
    victim = objects / blob[:2] / blob[2:]
    victim.chmod(0o644)
    shutil.copyfile(objects / other[:2] / other[2:], victim)
    with pytest.raises(
        ValueError, match=f"at {upstream.pinned[:12]} failed: .*did not send all necessary objects"
    ):
        make_charts()
    assert not (cache / "main").exists()


def test_the_noted_hash_of_all_files_must_hold(make_charts: Run, cache: Path, table: Path) -> None:
    make_charts()
    noted = content_sha256(files_of(whole(cache, table)))
    assert make_charts(content_sha256=noted) == "main: there already, unchanged\n"
    with pytest.raises(
        ValueError, match=f"chart main has SHA-256 {noted}, the table has 0{{64}}; it was not kept"
    ):
        make_charts(content_sha256="0" * 64)


def test_the_hash_of_all_files_is_that_of_sha256sum(make_charts: Run, cache: Path, table: Path) -> None:
    make_charts()
    command = "find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    done = subprocess.run(
        ["bash", "-c", command], cwd=whole(cache, table), capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == content_sha256(files_of(whole(cache, table)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_leaves_nothing_that_looks_whole_and_the_next_goes_on(
    make_charts: Run,
    upstream: Upstream,
    server: Server,
    cache: Path,
    table: Path,
    tmp_path: Path,
    number: int,
) -> None:
    """It is stopped while git fetches: a git of the PATH's that tells, and waits to be killed."""
    programs, waiting = tmp_path / "programs", tmp_path / "waiting"
    programs.mkdir()
    slow = programs / "git"
    slow.write_text(
        f'#!/bin/bash\ncase " $* " in *" fetch "*) touch {waiting}; exec sleep {WAIT_SECONDS};; esac\n'
        f'exec {shutil.which("git")} "$@"\n'
    )
    slow.chmod(0o755)
    upstream.write_table(table)
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.charts", "--table", table, "--cache", cache],
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
    with pytest.raises(ValueError, match="could not be fetched: IncompleteRead"):
        make_charts()
    server.answer = body(packaged())
    make_charts()


def test_two_runs_at_once_are_one(make_charts: Run, cache: Path) -> None:
    with charts._alone_in(cache), pytest.raises(ValueError, match="another make charts is at work"):
        make_charts()


def test_unknown_dependencies_and_unused_archives_are_told(make_charts: Run, upstream: Upstream) -> None:
    with pytest.raises(
        ValueError, match=r"takes certificates v1.18.2 of oci://charts.example/certificates, which"
    ):
        make_charts(left_out={})
    git = upstream.table()["main"]["git"]
    upstream.write_chart("alone", dependencies=[])
    with pytest.raises(ValueError, match=r"the table has device-plugin, which Chart.yaml does not take"):
        make_charts(git={**git, "commit": upstream.commit()})


def test_a_chart_that_helm_cannot_render_is_refused(
    make_charts: Run, upstream: Upstream, cache: Path
) -> None:
    helm()
    (upstream.repository / FOLDER / "templates" / "broken.yaml").write_text(
        "{{ .Values.text | nosuchfunction }}"
    )
    git = {**upstream.table()["main"]["git"], "commit": upstream.commit()}
    with pytest.raises(ValueError, match=r'helm cannot render chart main: .*"nosuchfunction" not defined'):
        make_charts(git=git)
    assert not (cache / "main").exists()


def test_hyperpods_chart_is_rendered_with_a_clusters_values_and_surprises_are_told(
    make_charts: Run, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody of the chart's readers here has seen the pinned commit before it was first fetched."""
    monkeypatch.setattr(charts, "HYPERPOD", "main")
    monkeypatch.chdir(REPOSITORY)
    template = upstream.repository / FOLDER / "templates" / "text.yaml"
    needed = '{{ (index .Values "health-monitoring-agent").region | required "a region" }}'
    template.write_text(template.read_text() + f"  region: {needed}\n")
    git = {**upstream.table()["main"]["git"], "commit": upstream.commit()}
    printed = make_charts(git=git)
    assert "WARNING: it installs what belongs to none of its parts: main/templates/text.yaml\n" in printed
    assert "WARNING: it installs own, which config/chart_values.py does not switch\n" in printed
    assert "WARNING: it installs device-plugin, which config" in printed


@pytest.mark.parametrize(
    ("rendered", "values", "remarks"),
    [
        ("# Source: main/charts/part/templates/a.yaml", {"part": {"enabled": True}}, []),
        ("", {"part": {"enabled": False}}, []),
        ("", {}, []),
        (
            "# Source: main/charts/part/templates/a.yaml",
            {"part": {"enabled": False}},
            ["part is switched off, and that has no effect"],
        ),
        ("", {"part": {"enabled": True}}, ["part is switched on, and that has no effect"]),
        (
            "# Source: main/charts/part/charts/more/templates/a.yaml",
            {},
            ["it installs part, which config/chart_values.py does not switch"],
        ),
    ],
)
def test_switches_without_effect(
    rendered: str, values: dict[str, Any], remarks: list[str], tmp_path: Path
) -> None:
    chart = {"name": "main", "dependencies": [{"name": "part", "condition": "part.enabled"}]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    assert charts.unexpected_parts(tmp_path / "Chart.yaml", values, rendered) == remarks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"commit": "0" * 40}, "at 000000000000 failed: .*not our ref"),
        ({"repository": "file:///nonexistent"}, "git of file:///nonexistent at .* failed: .*https_proxy"),
        ({"repository": "https://host.invalid/x.git"}, "failed: .*Could not resolve host: host.invalid"),
        ({"folder": "no/such"}, "failed: error: pathspec 'no/such' did not match"),
        ({"folder": "helm_chart"}, "helm_chart of file://.* has no Chart.yaml"),
    ],
)
def test_what_git_cannot_bring_is_told(
    make_charts: Run, upstream: Upstream, cache: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_charts(git={**upstream.table()["main"]["git"], **changes})
    assert not (cache / "main").exists() and unfinished(cache) == []


def test_without_git_it_is_told(make_charts: Run, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_without_a_network_it_is_told(
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


def test_a_full_disk_is_told(make_charts: Run, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(cache / "lock.json"))

    monkeypatch.setattr(charts, "write_lock", full)
    with pytest.raises(ValueError, match=r"lock.json: No space left on device; nothing unfinished was kept"):
        make_charts()
    assert not (cache / "main").exists() and unfinished(cache) == []


def test_line_ends_are_the_commits_whatever_git_is_set_to(
    make_charts: Run, cache: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text("[core]\n\tautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    make_charts()
    assert b"\r" not in (whole(cache, table) / "values.yaml").read_bytes()


def test_a_hook_of_another_repository_may_run_it(
    make_charts: Run, cache: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent/index")
    make_charts()
    assert whole(cache, table)


def test_the_command_gives_one_message(upstream: Upstream, cache: Path, table: Path) -> None:
    upstream.write_table(table, left_out={})
    done = subprocess.run(
        [sys.executable, "-m", "tools.charts", "--table", table, "--cache", cache],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: Chart.yaml takes certificates") and "Traceback" not in done.stderr


def test_our_table_is_good_and_asks_for_https() -> None:
    for chart in load_charts().values():
        assert chart.git.repository.startswith("https://")
        assert all(archive.url.startswith("https://") for archive in chart.archives)
