"""Packages are installed by uv from where pip would take them, and by pip if there is no uv."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PROGRAM = REPOSITORY / "docker/install_with_uv.py"
PINNED_BUILDERS = (REPOSITORY / "docker/requirements-build.txt").read_text()
WHEEL = "alpha-1.0-py3-none-any.whl"
METADATA = "alpha-1.0.dist-info"


@dataclass(frozen=True)
class Machine:
    """An environment without packages, and a folder with the wheel of one package as its only source."""

    folder: Path

    @property
    def packages(self) -> Path:
        return next((self.folder / "environment").glob("lib/python*/site-packages"))

    @property
    def installer(self) -> str:
        """Name of the program that installed the package, as the package's metadata have it."""
        return (self.packages / METADATA / "INSTALLER").read_text().strip()

    def requirement(self, sha256: str = "") -> Path:
        file = self.folder / "requirements.txt"
        wheel = self.folder / "wheels" / WHEEL
        sha256 = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
        file.write_text(f"alpha==1.0 --hash=sha256:{sha256}\n")
        return file

    def install(
        self, requirement: Path, *, path: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Install as ``make env`` does.

        Args:
            requirement: file with the package and its hash.
            path: folders of programs beside the system's.
            variables: further environment variables.
        """
        command = [
            self.folder / "environment/bin/python",
            "-B",
            PROGRAM,
            "--no-deps",
            "--require-hashes",
        ]
        environment = {
            "HOME": str(self.folder),
            "PATH": f"{path}:/usr/bin:/bin",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": str(self.folder / "wheels"),
            "PIP_NO_INDEX": "1",
            "UV_CACHE_DIR": str(self.folder / "cache"),
            **variables,
        }
        return subprocess.run(
            [*command, "--requirement", requirement],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )


def write_wheel(folder: Path, name: str = "alpha", version: str = "1.0") -> None:
    """Write the wheel of a package with one module."""
    folder.mkdir(exist_ok=True)
    metadata = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "ONE = 1\n")
        archive.writestr(
            f"{metadata}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{metadata}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        files = [f"{name}.py", f"{metadata}/METADATA", f"{metadata}/WHEEL", f"{metadata}/RECORD"]
        archive.writestr(f"{metadata}/RECORD", "".join(f"{file},,\n" for file in files))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    command = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "environment")]
    subprocess.run(command, check=True)
    # The pip of the developer's environment, to save the seconds that another one takes.
    (made.packages / "pip.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    write_wheel(tmp_path / "wheels")
    return made


def test_uv_takes_packages_from_pips_places(machine: Machine) -> None:
    done = machine.install(machine.requirement(), path=str(Path(sys.executable).parent))
    assert done.returncode == 0, done.stderr
    assert machine.installer == "uv"
    assert list(machine.packages.glob("__pycache__/alpha.*.pyc"))


def test_bytecode_is_left_out_as_by_pip(machine: Machine) -> None:
    done = machine.install(
        machine.requirement(), path=str(Path(sys.executable).parent), PIP_NO_COMPILE="no"
    )
    assert done.returncode == 0, done.stderr
    assert not list(machine.packages.glob("__pycache__/alpha.*.pyc"))


def test_a_constraint_of_the_machine_does_not_hinder_a_locked_package(machine: Machine) -> None:
    """uv refuses ranges beside ``--require-hashes``."""
    constraint = machine.folder / "constraint.txt"
    constraint.write_text("torch<99\n")
    done = machine.install(
        machine.requirement(), path=str(Path(sys.executable).parent), PIP_CONSTRAINT=str(constraint)
    )
    assert done.returncode == 0, done.stderr


def test_another_hash_is_refused(machine: Machine) -> None:
    done = machine.install(machine.requirement("0" * 64), path=str(Path(sys.executable).parent))
    assert done.returncode != 0
    assert "Hash mismatch for `alpha==1.0`" in done.stderr
    assert not (machine.packages / METADATA).exists()


def test_a_build_back_end_of_another_hash_is_refused(machine: Machine) -> None:
    """A package without a wheel runs its back end, which is code of the index too."""
    pinned = re.search(r"^setuptools==(\S+)", PINNED_BUILDERS, re.MULTILINE)
    assert pinned is not None
    wheels = machine.folder / "wheels"
    (wheels / WHEEL).unlink()
    write_wheel(wheels, "setuptools", pinned[1])
    source = wheels / "alpha-1.0.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for name, text in {
            "PKG-INFO": "Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\n",
            "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n',
        }.items():
            member = tarfile.TarInfo(f"alpha-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    requirement = machine.requirement(hashlib.sha256(source.read_bytes()).hexdigest())
    done = machine.install(requirement, path=str(Path(sys.executable).parent))
    assert done.returncode != 0
    assert f"Hash mismatch for `setuptools=={pinned[1]}`" in done.stderr


def test_pip_installs_where_uv_cannot_be_had(machine: Machine) -> None:
    done = machine.install(machine.requirement())
    assert done.returncode == 0, done.stderr
    assert "No matching distribution found for uv" in done.stderr
    assert "pip installs the packages" in done.stderr
    assert machine.installer == "pip"


def test_another_version_of_uv_is_not_used(machine: Machine) -> None:
    programs = machine.folder / "programs"
    programs.mkdir()
    (programs / "uv").write_text("#!/bin/sh\necho uv 0.0.1\n")
    (programs / "uv").chmod(0o755)
    done = machine.install(machine.requirement(), path=str(programs))
    assert done.returncode == 0, done.stderr
    assert machine.installer == "pip"


def test_uv_is_that_of_the_lock() -> None:
    locked = (REPOSITORY / "requirements.lock").read_text()
    [entry] = re.findall(r"^uv==.*\n(?:[ \t]+.*\n)+", locked, flags=re.MULTILINE)
    header, _, pinned = (REPOSITORY / "docker/requirements-uv.txt").read_text().partition("\n")
    assert header.startswith("#") and pinned == entry, "run: make lock"
