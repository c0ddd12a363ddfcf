"""Environment with the wheel, outside the checkout. Other packages come from the developer's environment."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tests.shared_folder import shared_folder

REPOSITORY = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")


@dataclass(frozen=True)
class Package:
    archives: Path
    """Folder of the wheel and the sdist."""
    bin: Path
    """Programs of the environment."""

    @property
    def wheel(self) -> Path:
        return next(self.archives.glob("*.whl"))

    def run(
        self, *command: str, folder: Path, timeout: int = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder, which must be outside the checkout."""
        assert REPOSITORY not in (folder, *folder.parents)
        return subprocess.run(
            [self.bin / command[0], *command[1:]],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
        )


def environment() -> dict[str, str]:
    """Return the variables of this process, without those that lead to the checkout."""
    left_out = ("PYTHONPATH", "VIRTUAL_ENV", "GIT_SHA")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def installed_package() -> Package:
    """The package, built and installed by the first process of the session that wants it."""
    folder = shared_folder() / "package"
    package = Package(folder / "dist", folder / "environment" / "bin")
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _build(folder, package)
            (folder / "done").touch()
    return package


def _build(folder: Path, package: Package) -> None:
    """Build the wheel by way of the sdist, and install it without ``..`` on any path."""
    archives = package.archives
    place = package.bin.parent
    source = ["--no-build-isolation", "--python", sys.executable, "--out-dir", str(archives)]
    for command in (
        [UV, "build", "--offline", "--no-progress", *source, str(REPOSITORY)],
        [UV, "venv", "--offline", "--python", sys.executable, str(place)],
    ):
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
    python = place / "bin" / "python"
    [wheel] = archives.glob("*.whl")
    install = [UV, "pip", "install", "--offline", "--no-deps", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, cwd=folder)
    [packages] = place.glob("lib/python*/site-packages")
    (packages / "developer.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
