"""A second Prometheus in place of Amazon Managed Service for Prometheus: it takes what is sent to it."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

from tests.cluster.island import GATEWAY, Island
from tests.cluster.patience import wait_until

_URL = f"http://{GATEWAY}:9090"
REMOTE_WRITE_URL = f"{_URL}/api/v1/write"


class MetricsWorkspace:
    def __init__(self, island: Island, folder: Path) -> None:
        self._island = island
        self._log = folder / "workspace.log"

    def start(self) -> None:
        folder = self._island.inner_folder / "workspace"
        (self._island.folder / "workspace").mkdir()
        (self._island.folder / "workspace/prometheus.yml").write_text("{}\n")
        options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        listen = f"--web.listen-address={GATEWAY}:9090"
        command = ["prometheus", *options, listen, "--web.enable-remote-write-receiver"]
        with self._log.open("wb") as log:
            subprocess.Popen(
                self._island.command(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_until(
            lambda: self._get("/-/ready"), f"the metrics' workspace; see {self._log}", seconds=240
        )

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Samples of a PromQL expression: each has ``metric``, its labels, and ``value``."""
        answer = self._get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        result: list[dict[str, Any]] = json.loads(answer)["data"]["result"]
        return result

    def instances(self, expression: str) -> set[str]:
        """Label ``instance`` of all that the expression finds."""
        return {sample["metric"]["instance"] for sample in self.query(expression)}

    def has(self, expression: str, instances: set[str]) -> bool:
        return self.instances(expression) == instances

    def _get(self, path: str) -> str:
        """The answer; nothing if there is none."""
        curl = ["curl", "--silent", "--fail", "--max-time", "10", _URL + path]
        done = subprocess.run(
            self._island.command(curl), capture_output=True, text=True, timeout=240
        )
        return done.stdout
