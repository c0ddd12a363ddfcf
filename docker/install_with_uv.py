"""Install Python packages with uv, or with pip if uv is not available: ``install_with_uv.py [OPTION...]``.

The packages go into the environment of the Python that runs this program. The options are those that
``pip install`` and ``uv pip install`` have in common. uv needs seconds where pip needs minutes.
requirements-uv.txt pins the version of uv with its hashes. A uv on the PATH is used if it has that version.
Otherwise, pip installs uv in a temporary folder. With ``--require-hashes``, requirements-build.txt pins the
back ends that build packages without a wheel. Standard library only.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pip_settings

UV_REQUIREMENTS = Path(__file__).with_name("requirements-uv.txt")
BUILD_REQUIREMENTS = Path(__file__).with_name("requirements-build.txt")
PIP = (sys.executable, "-m", "pip")
PIP_VARIABLES = {
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_PROGRESS_BAR": "off",
    "PIP_ROOT_USER_ACTION": "ignore",
}
UV_VARIABLES = {
    # The largest file compiles within seconds, but not on a machine with other work.
    "UV_COMPILE_BYTECODE_TIMEOUT": "600",
}
"""Variables of uv, unless the user sets them."""
BINARY_ONLY = ("--no-deps", "--require-hashes", "--only-binary", ":all:")


def main(options: Sequence[str]) -> int:
    """Return the exit status of the installer."""
    for_pip = {**os.environ, **PIP_VARIABLES}
    version = pinned_version()
    with tempfile.TemporaryDirectory() as folder:
        uv = uv_on_path(version) or installed_uv(Path(folder), for_pip)
        if uv is not None:
            return install(uv, read_settings(for_pip), options)
    message = f"uv {version} cannot be installed on this machine; pip installs the packages instead"
    print(message, file=sys.stderr)
    if "--require-hashes" in options:
        for_pip["PIP_BUILD_CONSTRAINT"] = str(BUILD_REQUIREMENTS)
    return subprocess.run([*PIP, "install", *options], env=for_pip, check=False).returncode


def install(uv: Path, settings: Mapping[str, str], options: Sequence[str]) -> int:
    """Install with uv and return its exit status.

    Args:
        uv: the program.
        settings: settings of pip.
        options: options of ``uv pip install``.
    """
    # uv's own variables, which the user may have set, come before pip's settings.
    users_own = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
    from_pip = pip_settings.uv_variables(settings, os.environ)
    environment = {**os.environ, **UV_VARIABLES, **from_pip, **users_own}
    if "--require-hashes" in options:
        # uv demands an exact version of each constraint then. The locked versions are exact already.
        environment.pop("UV_CONSTRAINT", None)
        environment["UV_BUILD_CONSTRAINT"] = str(BUILD_REQUIREMENTS)
    command = [str(uv), "pip", "install", "--python", sys.executable]
    command += [*pip_settings.uv_arguments(settings, options), *options]
    return subprocess.run(command, env=environment, check=False).returncode


def pinned_version() -> str:
    """Return the version of uv in requirements-uv.txt."""
    pin = re.search(r"^uv==(\S+)", UV_REQUIREMENTS.read_text(), flags=re.MULTILINE)
    if pin is None:
        raise ValueError(f"{UV_REQUIREMENTS}: expected a line uv==VERSION")
    return pin[1]


def uv_on_path(version: str) -> Path | None:
    """Return the program uv of this Python's environment or of the PATH, if it has the version."""
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    found = shutil.which("uv", path=os.pathsep.join(folders))
    if found is None:
        return None
    shown = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return Path(found) if shown.split()[1:2] == [version] else None


def installed_uv(folder: Path, environment: Mapping[str, str]) -> Path | None:
    """Install uv in a folder. Return the program, or None if it cannot be installed or does not run."""
    command = [*PIP, "install", "--quiet", *BINARY_ONLY, "--target", str(folder)]
    command += ["--requirement", str(UV_REQUIREMENTS)]
    if subprocess.run(command, env=environment, check=False).returncode:
        return None  # pip finds no wheel for this machine
    uv = folder / "bin" / "uv"
    try:
        works = (
            subprocess.run([uv, "--version"], stdout=subprocess.DEVNULL, check=False).returncode
            == 0
        )
    except (
        OSError
    ):  # the folder for temporary files may be mounted without the permission to run programs
        return None
    return uv if works else None


def read_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings from its files and variables."""
    command = [*PIP, "config", "list"]
    listing = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return pip_settings.parse(listing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
