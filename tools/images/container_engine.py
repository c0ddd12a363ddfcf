"""One interface to docker, buildah or podman, with the five operations that images need."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ENGINES = ("docker", "buildah", "podman")
"""Container engines in the order of the search."""
PLATFORM = "linux/amd64"
"""Platform of the nodes, also for images built on a Mac with Apple's processor."""
_STANDARD_ERROR = 2
"""Stream for long output of engines; tools print only their results to standard output."""


@dataclass(frozen=True)
class ContainerEngine:
    name: str

    def build(
        self,
        *,
        context: Path,
        dockerfile: Path,
        arguments: Mapping[str, str],
        tag: str,
        timestamp_seconds: int,
        options: Sequence[str] = (),
    ) -> None:
        """Build an image, with the engine's own messages on the terminal.

        Args:
            context: folder of the files that go into the image.
            dockerfile: Dockerfile.
            arguments: build arguments.
            tag: local name of the image.
            timestamp_seconds: time of all files in the image, in seconds since 1970.
            options: additional options of the engine's build command.

        Raises:
            ValueError: if the build fails.
        """
        command = [
            self.name,
            "build",
            "--platform",
            PLATFORM,
            "--file",
            str(dockerfile),
            "--tag",
            tag,
        ]
        arguments = {**arguments, "SOURCE_DATE_EPOCH": str(timestamp_seconds)}
        for name, value in arguments.items():
            command += ["--build-arg", f"{name}={value}"]
        if self.name == "docker":
            # With attestations, the image is an index with an entry for no platform, which enroot cannot
            # read.
            command += ["--provenance=false", "--sbom=false"]
        else:
            # OCI's format cannot store the shell, and older releases of enroot do not read it.
            command += ["--format", "docker", "--timestamp", str(timestamp_seconds)]
        if self.name == "buildah":
            # Layers are the default of the other engines. Only changed layers are pushed.
            command.append("--layers")
        command += [*options, str(context)]
        environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
        if subprocess.run(command, env=environment, stdout=_STANDARD_ERROR).returncode:
            raise ValueError(
                f"{self.name} could not build {tag}; its last lines above say at which step"
            )

    def has_image(self, tag: str) -> bool:
        inspect = ["inspect", "--type", "image"] if self.name == "buildah" else ["image", "inspect"]
        return subprocess.run([self.name, *inspect, tag], capture_output=True).returncode == 0

    def push(self, tag: str, target: str) -> None:
        """Push an image under its name in a registry, to which the engine is logged in.

        Args:
            tag: local name of the image.
            target: name in the registry.

        Raises:
            ValueError: if the registry rejects it.
        """
        subprocess.run([self.name, "tag", tag, target], check=True, stdout=_STANDARD_ERROR)
        if subprocess.run([self.name, "push", target], stdout=_STANDARD_ERROR).returncode:
            raise ValueError(f"{self.name} could not push {target}; its last lines above say why")

    @contextmanager
    def logged_in(self, registry: str, *, user: str, password: str) -> Iterator[None]:
        """Log in to a registry for the duration of the block, so that no password stays on this machine.

        Raises:
            ValueError: if the registry refuses the login.
        """
        login = [self.name, "login", "--username", user, "--password-stdin", registry]
        done = subprocess.run(login, input=password, text=True, capture_output=True)
        if done.returncode:
            raise ValueError(f"{self.name} could not log in to {registry}: {done.stderr.strip()}")
        try:
            yield
        finally:
            subprocess.run([self.name, "logout", registry], capture_output=True)


def find_engine(wanted: str | None = None) -> ContainerEngine:
    """Return the requested engine, or the first one that works.

    Raises:
        ValueError: if no engine works, with advice on what to install.
    """
    installed = [name for name in ENGINES if shutil.which(name)]
    if wanted:
        if wanted not in installed:
            raise ValueError(
                f"{wanted} is not installed; there are: {', '.join(installed) or 'none'}"
            )
        return ContainerEngine(wanted)
    for name in installed:
        if (
            name != "docker"
            or subprocess.run(["docker", "version"], capture_output=True).returncode == 0
        ):
            return ContainerEngine(name)
    stopped = (
        "docker is installed, but its daemon does not answer: start it, or " if installed else ""
    )
    raise ValueError(
        f"{stopped}install docker, buildah or podman (Debian/Ubuntu: apt-get install buildah; macOS: Docker "
        "Desktop, or brew install podman). An image needs about 60 GB of free disk"
    )
