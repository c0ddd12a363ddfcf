"""Packages of requirements.lock that the base image lacks, and a check that all packages fit together.

``python_lock.py lacking LOCK VERSIONS TO-INSTALL SHIPPED`` writes the packages to install, with hashes, and
the versions that the base ships. ``python_lock.py check LOCK VERSIONS DIRECT SHIPPED`` reports every problem
at once.

A package that the base ships stays as it is, because NVIDIA builds torch and the packages that depend on it
against each other. The exceptions are the packages that versions.json names as replaced. They get the locked
version.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

# pip installs uv, so the base ships it. The base need not ship the package `packaging`.
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

Installed = dict[str, str]
"""Versions by canonical name."""


class Locked(NamedTuple):
    """Package of the lock."""

    version: str
    lines: str
    """The requirement with its hashes, as it stands in the lock."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["lacking", "check"])
    parser.add_argument("lock", type=Path, help="requirements.lock")
    parser.add_argument("versions", type=Path, help="versions.json")
    parser.add_argument(
        "list", type=Path, help="TO-INSTALL, which lacking writes; DIRECT, which check reads"
    )
    parser.add_argument("shipped", type=Path, help="SHIPPED, which lacking writes and check reads")
    parser.add_argument(
        "--site", action="append", help="folder of packages instead of this Python's"
    )
    options = parser.parse_args()
    locked = read_lock(options.lock.read_text())
    versions = json.loads(options.versions.read_text())
    replaced = {str(canonicalize_name(name)) for name in versions["replaced_python_packages"]}
    packages = list(distributions(path=options.site) if options.site else distributions())
    installed = installed_versions(packages)
    if options.command == "lacking":
        chosen = {name for name in locked if name not in installed or name in replaced}
        options.list.write_text("".join(locked[name].lines for name in sorted(chosen)))
        options.shipped.write_text(json.dumps(installed))
        shipped = ", ".join(sorted(set(locked) - chosen))
        print(f"to install: {len(chosen)}; shipped by the base: {shipped}")
        return
    problems = changed(json.loads(options.shipped.read_text()), installed, replaced)
    problems += unmet(locked, read_direct(options.list.read_text()), installed, packages)
    problems += another_torch(versions["base"].get("torch"), installed.get("torch"))
    if problems:
        lines = [f"  {problem}" for problem in problems]
        sys.exit("\n".join(["error: the packages do not fit together:", *lines]))


def installed_versions(packages: Iterable[Distribution]) -> Installed:
    """Return the version of each package that Python imports: the first one on its path."""
    found: Installed = {}
    for package in packages:
        found.setdefault(str(canonicalize_name(package.metadata["Name"])), package.version)
    return found


def read_direct(text: str) -> list[Requirement]:
    """Return the requirements of a requirements.in."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [Requirement(line) for line in lines if line]


def read_lock(text: str) -> dict[str, Locked]:
    """Return the packages of a lock by canonical name.

    Raises:
        ValueError: for a package that has no exact version or no hash.
    """
    locked = {}
    for block in re.findall(r"^[^\s#].*\n(?:[ \t]+.*\n)*", text, flags=re.MULTILINE):
        match = re.match(r"([\w.-]+)==(\S+)", block)
        if not match or "--hash=sha256:" not in block:
            raise ValueError(f"lock: no exact version or no hash: {block.splitlines()[0]}")
        locked[str(canonicalize_name(match[1]))] = Locked(match[2], block)
    return locked


def changed(before: Installed, after: Installed, replaced: set[str]) -> list[str]:
    """Return a line for each package of the base that is missing or has another version now."""
    return [
        f"{name}: the base shipped {version}, now {after.get(name)}"
        for name, version in sorted(before.items())
        if after.get(name) != version and name not in replaced
    ]


def unmet(
    locked: dict[str, Locked],
    direct: list[Requirement],
    installed: Installed,
    packages: Iterable[Distribution],
) -> list[str]:
    """Return a line for each requirement that no installed version meets.

    Args:
        locked: packages of the lock.
        direct: requirements of the project.
        installed: versions of all packages.
        packages: all packages; the requirements of those in the lock count as well.
    """
    needs = [("requirements.in", requirement) for requirement in direct]
    for package in packages:
        name = str(canonicalize_name(package.metadata["Name"]))
        if name in locked and package.version == installed[name]:
            source = f"{name} {package.version}"
            needs += [(source, Requirement(text)) for text in package.requires or []]
    problems = [f"{name}: locked, not installed" for name in sorted(set(locked) - set(installed))]
    for source, need in needs:
        if need.marker and not need.marker.evaluate({"extra": ""}):
            continue
        version = installed.get(str(canonicalize_name(need.name)))
        if version is None or not need.specifier.contains(version, prereleases=True):
            problems.append(f"{source} needs {need.name}{need.specifier}, found {version}")
    return problems


def another_torch(expected: str | None, found: str | None) -> list[str]:
    """Return a line if torch is not the one in versions.json."""
    if expected is None:
        print(f"torch: found {found}; versions.json expects no version in particular")
    elif found != expected:
        return [f"torch: found {found}, versions.json says {expected}"]
    return []


if __name__ == "__main__":
    main()
