"""Space that is set up: its files, its commands and its settings."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

METADATA = "/opt/ml/metadata/resource-metadata.json"
"""SageMaker's file with the owner of the space."""
SHOWN_CHARACTERS = 600
"""Length of the shown end of a failed command's output."""


class SpaceError(Exception):
    """Failure that the space's user can correct."""


@dataclass
class Space:
    """A space. Its ``root`` differs from / only in tests."""

    settings: dict[str, Any]
    root: Path = field(default_factory=lambda: Path(os.environ.get("SPACE_ROOT", "/")))
    home: Path = field(default_factory=Path.home)

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    @property
    def profile(self) -> str:
        """Name of the profile that the space belongs to.

        Raises:
            SpaceError: if it has no owner, because it is shared.
        """
        metadata = json.loads(self.path(METADATA).read_text())
        name = metadata.get("UserProfileName")
        if not name:
            described = self.aws(
                "sagemaker",
                "describe-space",
                "--domain-id",
                metadata["DomainId"],
                "--space-name",
                metadata["SpaceName"],
                "--output",
                "json",
            )
            name = json.loads(described).get("OwnershipSettings", {}).get("OwnerUserProfileName")
        if not name:
            raise SpaceError("the space has no owner: create a private one")
        return str(name).lower()

    def aws(self, *arguments: str) -> str:
        return self.run("aws", *arguments, "--region", self.settings["region"])

    def run(self, *command: str, text: str = "", timeout: float = 120) -> str:
        """Run a command that must succeed, with ``text`` as its input, and return its output.

        Raises:
            SpaceError: if it fails, with its output.
        """
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout)
        if done.returncode:
            said = done.stderr.strip() or done.stdout.strip()
            raise SpaceError(
                f"{' '.join(command[:3])} ended with {done.returncode}: {said[-SHOWN_CHARACTERS:]}"
            )
        return done.stdout

    def as_root(self, *command: str, text: str = "") -> str:
        """Run a command as root, which the user of a space may become in it."""
        is_test = self.root != Path("/")
        if os.geteuid() == 0 or is_test:
            return self.run(*command, text=text)
        return self.run("sudo", "--non-interactive", *command, text=text)

    def install(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a system file."""
        temporary = Path(f"/tmp/cluster-set-up-{os.getpid()}-{Path(path).name}")
        temporary.touch(mode=0o600)
        temporary.write_text(text)
        target = str(self.path(path))
        self.as_root("install", "-D", f"--mode={mode:o}", str(temporary), target)
        temporary.unlink()

    def profile_lines(self, lines: list[str]) -> None:
        """Make the space's shells run these lines instead of earlier ones of this setup."""
        own = self.home / ".config/cluster.sh"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text("".join(f"{line}\n" for line in lines))
        bashrc = self.home / ".bashrc"
        text = bashrc.read_text() if bashrc.exists() else ""
        if "cluster.sh" not in text:
            bashrc.write_text(f"{text}\n. ~/.config/cluster.sh\n")
