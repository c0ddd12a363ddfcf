"""Packages of requirements.lock that the base image lacks, and a check that all packages fit together.

``python_lock.py lacking LOCK VERSIONS TO-INSTALL SHIPPED`` writes what to install, with hashes, and what the
base ships. ``python_lock.py check LOCK VERSIONS DIRECT SHIPPED`` reports every problem at once.

A package that the base ships stays as it is: NVIDIA builds torch and what hangs on it against each other.
Excepted are those that versions.json names as replaced, which are taken at the locked version.
"""

import argparse
import json
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

# pip installs uv, so the base ships it. The base need not ship the package `packaging`.
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

Installed = dict[str, str]
"""Versions by canonical name."""


class Locked(NamedTuple):
    version: str
    lines: str
    """The requirement with its hashes, as it stands in the lock."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["lacking", "check"])
    parser.add_argument("lock", type=Path)
    parser.add_argument("versions", type=Path)
    parser.add_argument("files", type=Path, nargs=2)
    parser.add_argument("--site", action="append", help="folder of packages instead of this Python's")
    options = parser.parse_args()
    locked = read_lock(options.lock.read_text())
    versions = json.loads(options.versions.read_text())
    replaced = {str(canonicalize_name(name)) for name in versions["replaced_python_packages"]}
    installed = installed_versions(options.site)
    first, shipped = options.files
    if options.command == "lacking":
        chosen = {name for name in locked if name not in installed or name in replaced}
        first.write_text("".join(locked[name].lines for name in sorted(chosen)))
        shipped.write_text(json.dumps(installed))
        print(f"to install: {len(chosen)}; shipped by the base: {', '.join(sorted(set(locked) - chosen))}")
        return
    problems = changed(json.loads(shipped.read_text()), installed, replaced)
    lines = (line.partition("#")[0].strip() for line in first.read_text().splitlines())
    problems += unmet(locked, [Requirement(line) for line in lines if line], installed, options.site)
    torch, expected = installed.get("torch"), versions["base"].get("torch")
    if expected is None:
        print(f"torch: found {torch}; versions.json expects no version in particular")
    elif torch != expected:
        problems.append(f"torch: found {torch}, versions.json says {expected}")
    if problems:
        sys.exit("error: the packages do not fit together:\n" + "\n".join(f"  {p}" for p in problems))


def installed_versions(site: list[str] | None) -> Installed:
    """The first one of each name on the path is the one that is imported."""
    found: Installed = {}
    for distribution in distributions(path=site) if site else distributions():
        found.setdefault(str(canonicalize_name(distribution.metadata["Name"])), distribution.version)
    return found


def read_lock(text: str) -> dict[str, Locked]:
    """Packages of a lock by canonical name.

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
    """Packages of the base that are missing or have another version now."""
    return [
        f"{name}: the base shipped {version}, now {after.get(name)}"
        for name, version in sorted(before.items())
        if after.get(name) != version and name not in replaced
    ]


def unmet(
    locked: dict[str, Locked], direct: list[Requirement], installed: Installed, site: list[str] | None
) -> list[str]:
    """Requirements of ours, and of the packages that we use, which no installed version meets."""
    needs = [("requirements.in", requirement) for requirement in direct]
    for distribution in distributions(path=site) if site else distributions():
        name = str(canonicalize_name(distribution.metadata["Name"]))
        if name in locked and distribution.version == installed[name]:
            needs += [(f"{name} {distribution.version}", Requirement(r)) for r in distribution.requires or []]
    problems = [f"{name}: locked, not installed" for name in sorted(set(locked) - set(installed))]
    for who, need in needs:
        if need.marker and not need.marker.evaluate({"extra": ""}):
            continue
        version = installed.get(str(canonicalize_name(need.name)))
        if version is None or not need.specifier.contains(version, prereleases=True):
            problems.append(f"{who} needs {need.name}{need.specifier}, found {version}")
    return problems


if __name__ == "__main__":
    main()
