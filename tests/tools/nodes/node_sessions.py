"""An aws command whose sessions really run their command, on this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

AWS = """#!{python} -S
import json, os, shlex, shutil, subprocess, sys
here = {folder!r}
words = sys.argv[1:]
with open(here + "/calls", "a") as calls:
    print(json.dumps(words), file=calls)
if words == ["--version"]:
    print("aws-cli/2.31.0 Python/3.13")
elif words[:2] == ["s3", "cp"]:
    shutil.copytree(here + "/bucket/" + words[-2].rstrip("/").rpartition("/")[2], words[-1])
elif words[:2] == ["ssm", "start-session"]:
    if not os.isatty(0) or not os.isatty(1):
        sys.exit("Cannot perform start session: EOF")
    if os.path.exists(here + "/refuses"):
        sys.exit("\\nAn error occurred (TargetNotConnected): ada is not connected.")
    print("\\nStarting session with SessionId: ada-0123\\r", flush=True)
    if os.path.exists(here + "/breaks"):
        sys.exit(0)
    (command,) = json.loads(words[words.index("--parameters") + 1])["command"]
    by_words = os.path.exists(here + "/splits-words")
    started = shlex.split(command) if by_words else ["sh", "-c", command]
    subprocess.run(started, env={{"PATH": {path!r}}}, cwd="/")
    print("\\n\\nExiting session with sessionId: ada-0123.\\n")
"""


class NodeSessions:
    """Programs for a PATH, and files below ``bucket/<hash>`` that the nodes' aws command copies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        self.path = f"{folder / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        self._program("aws", AWS.format(python=sys.executable, folder=str(folder), path=self.path))
        self._program("session-manager-plugin", "#!/bin/sh\n")
        # The user that the agent starts sessions as may become root; these tests may not.
        self._program("sudo", '#!/bin/sh\nexec "$@"\n')

    def _program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def upload(self, hash_: str, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / "bucket" / hash_ / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def set(self, flag: str) -> None:
        (self.folder / flag).touch()

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def sessions(self) -> list[str]:
        """Targets of the sessions that were started."""
        return [
            call[call.index("--target") + 1]
            for call in self.calls
            if call[1:2] == ["start-session"]
        ]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": self.path}
