"""`make charts` on a publisher of this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manifests.charts import CACHE
from tests.lifecycle.https_server import served
from tests.manifests.helm_runs import helm
from tests.tools.kubernetes.chart_upstream import Run, Server, Upstream, packaged
from tools.kubernetes import charts


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
