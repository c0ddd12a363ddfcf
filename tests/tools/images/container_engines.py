"""Programs on the path that stand in for docker, buildah and podman, and record their calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """#!/usr/bin/env python3
import json, os, pathlib, sys

folder = pathlib.Path({folder!r})
name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
stdin = sys.stdin.read() if "--password-stdin" in arguments else ""
context = pathlib.Path(arguments[-1]) if arguments[:1] == ["build"] else None
files = sorted(str(p.relative_to(context)) for p in context.rglob("*") if p.is_file()) if context else []
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(dict(name=name, arguments=arguments, stdin=stdin, files=files)) + "\\n")
print("what " + name + " says at length")
failing = (folder / "failing").read_text().split() if (folder / "failing").exists() else []
if arguments[0] == "build":
    (folder / "empty").unlink(missing_ok=True)
elif "inspect" in arguments and (folder / "empty").exists():
    failing += arguments
if arguments[0] in failing:
    print(arguments[0] + " refused", file=sys.stderr)
    sys.exit(1)
"""


class Engines:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.bin = folder / "engines"
        self.bin.mkdir()
        # git and the interpreter stay; engines of this machine do not.
        for program in ("git", "env", "python3"):
            monkeypatch.setenv("PATH", str(self.bin))
            (self.bin / program).symlink_to(_which(program))

    def install(self, *names: str) -> None:
        for name in names:
            (self.bin / name).write_text(PROGRAM.format(folder=str(self.folder)))
            (self.bin / name).chmod(0o755)

    def have_no_image(self) -> None:
        """Forget the image, until one is built."""
        (self.folder / "empty").touch()

    def fail(self, *commands: str) -> None:
        (self.folder / "failing").write_text(" ".join(commands))

    @property
    def calls(self) -> list[dict[str, Any]]:
        log = self.folder / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def verbs(self) -> list[str]:
        return [call["arguments"][0] for call in self.calls]


def _which(program: str) -> Path:
    """Return its path, independent of the current PATH."""
    for folder in ("/usr/local/bin", "/usr/bin", "/bin", "/opt/homebrew/bin"):
        if (Path(folder) / program).exists():
            return Path(folder) / program
    raise AssertionError(f"{program} is not on this machine")
