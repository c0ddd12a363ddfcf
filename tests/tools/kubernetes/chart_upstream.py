"""A publisher of charts on this machine: a git repository with one, and a server with one it depends on."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from manifests.charts import chart_folder
from tests.lifecycle.https_server import body
from tools.kubernetes import charts

Run = Callable[..., str]

FOLDER = "helm_chart/Main"
PLUGIN = "device-plugin"
LEFT_OUT = "certificates"
CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
  text: {{{{ .Values.text | quote }}}}
"""


def packaged(name: str = PLUGIN, version: str = "v0.5.20", text: str = "of the plugin") -> bytes:
    """A chart as `helm package` makes them, the same bytes at each call."""
    files = {
        "Chart.yaml": yaml.safe_dump({"apiVersion": "v2", "name": name, "version": version}),
        "values.yaml": yaml.safe_dump({"text": text, "enabled": True}),
        "templates/text.yaml": CONFIG_MAP.format(name=name),
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size = len(content.encode())
            tar.addfile(info, io.BytesIO(content.encode()))
    return gzip.compress(stream.getvalue(), mtime=0)


class Upstream:
    """The repository, with two commits on its branch, of which the table pins the first."""

    def __init__(self, folder: Path, archive_url: str, archive: bytes) -> None:
        self.repository = folder / "upstream"
        self.repository.mkdir()
        self._archive_url = archive_url
        self._archive = archive
        self._git("init", "--quiet", "--initial-branch=main")
        self.write_chart("first")
        (self.repository / "README.md").write_text("not of the chart\n")
        self.pinned = self.commit()
        self.write_chart("second")
        self.commit()

    def write_chart(self, text: str, **document: Any) -> None:
        """Chart.yaml with a dependency of its own, one elsewhere, and one that is left out."""
        chart = self.repository / FOLDER
        own = chart / "charts" / "own"
        for folder in (chart / "templates", own / "templates"):
            folder.mkdir(parents=True, exist_ok=True)
        dependencies = [
            {"name": "own", "version": "0.1.0", "repository": "file://charts/own"},
            {
                "name": PLUGIN,
                "version": "0.5.10",
                "repository": "https://charts.example",
                "condition": "device-plugin.enabled",
            },
            {
                "name": LEFT_OUT,
                "version": "v1.18.2",
                "repository": "oci://charts.example/certificates",
            },
        ]
        main = {
            "apiVersion": "v2",
            "name": "main",
            "version": "0.1.0",
            "dependencies": dependencies,
        }
        (chart / "Chart.yaml").write_text(yaml.safe_dump({**main, **document}))
        (chart / "Chart.lock").write_text("digest: of what Chart.yaml was\n")
        (chart / "values.yaml").write_text(yaml.safe_dump({"text": text}))
        (chart / "templates" / "text.yaml").write_text(CONFIG_MAP.format(name="main"))
        (own / "Chart.yaml").write_text(
            yaml.safe_dump({"apiVersion": "v2", "name": "own", "version": "0.1.0"})
        )
        (own / "values.yaml").write_text("text: own\n")
        (own / "templates" / "text.yaml").write_text(CONFIG_MAP.format(name="own"))

    def commit(self) -> str:
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message=a change")
        return self._git("rev-parse", "HEAD")

    def move_branch(self) -> None:
        """Rewrite the history, so that no branch has the pinned commit any more."""
        self._git("checkout", "--quiet", "--orphan", "other")
        self.write_chart("other")
        self.commit()
        self._git("branch", "--quiet", "--force", "main", "other")

    def table(self, **changes: Any) -> dict[str, Any]:
        """Return a table with one chart, ``main``, and ``changes`` in it."""
        plugin = {
            "name": PLUGIN,
            "version": "0.5.20",
            "url": self._archive_url,
            "sha256": hashlib.sha256(self._archive).hexdigest(),
        }
        git = {
            "repository": f"file://{self.repository}",
            "commit": self.pinned,
            "folder": FOLDER,
            "content_sha256": None,
        }
        chart = {"git": git, "archives": [plugin], "left_out": {LEFT_OUT: "comes by itself"}}
        return {"main": {**chart, **changes}}

    def write_table(self, path: Path, **changes: Any) -> Path:
        path.write_text(json.dumps(self.table(**changes)))
        return path

    def _git(self, *arguments: str) -> str:
        identity = {
            f"GIT_{who}_{what}": "a"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.repository,
            env={"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, **identity},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()


class Server:
    """Gives the plugin's archive, or what a test puts in its place, and counts."""

    def __init__(self) -> None:
        self.answer = body(packaged())
        self.requests = 0

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        self.answer(request)


def unfinished(cache: Path) -> list[Path]:
    return list(cache.glob(f"{charts.UNFINISHED}*"))


def whole(cache: Path, table: Path) -> Path:
    return chart_folder("main", cache=cache, table=table)
