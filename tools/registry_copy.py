"""Copying a container image from one registry to another, every platform and byte of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SHOWN_CHARACTERS = 600


def copy_image(source: str, target: str, *, registry: str, token: str) -> bool:
    """Copy with skopeo, or docker's buildx; False if neither is here.

    ``token`` signs in to the target's ``registry``, as ECR gives it. It stays in a file of this call's.

    Raises:
        ValueError: if the copy fails, with what the program said.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.touch(mode=0o600)
        config.write_text(json.dumps({"auths": {registry: {"auth": token}}}))
        if shutil.which("skopeo"):
            # All platforms, and none converted: a converted one has another digest.
            options = ["--all", "--preserve-digests", "--authfile", str(config)]
            return _run(["skopeo", "copy", *options, f"docker://{source}", f"docker://{target}"], os.environ)
        if _has_buildx():
            # Docker looks for its plugins beside its configuration.
            plugins = Path.home() / ".docker/cli-plugins"
            if plugins.is_dir():
                (Path(folder) / "cli-plugins").symlink_to(plugins)
            command = ["docker", "buildx", "imagetools", "create", "--tag", target, source]
            return _run(command, {**os.environ, "DOCKER_CONFIG": folder})
    return False


def _has_buildx() -> bool:
    if not shutil.which("docker"):
        return False
    version = subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False)
    return version.returncode == 0


def _run(command: list[str], env: os._Environ[str] | dict[str, str]) -> bool:
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        said = " ".join(done.stdout.split())[-SHOWN_CHARACTERS:]
        raise ValueError(f"`{' '.join(command)}` ended with {done.returncode}: {said}")
    return True
