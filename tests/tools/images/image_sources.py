"""A repository of its own, with the files that an image is made of."""

from __future__ import annotations

import subprocess
from pathlib import Path

OTHER_BASE = '{"base": {"image": "registry.example/other", "tag": "2", "digest": null}}'
BASE = {
    "image": "registry.example/base",
    "tag": "1",
    "digest": "sha256:" + "ab" * 32,
    "torch": "2.13.0",
}
COMMITTED_AT = "2026-03-04T05:06:07+00:00"


def git(repository: Path, *arguments: str) -> str:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_COMMITTER_DATE": COMMITTED_AT}
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    return subprocess.run(
        ["git", *identity, *arguments],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


def make_repository(folder: Path) -> Path:
    repository = folder / "repository"
    files = {
        "docker/versions.json": f'{{"base": {str(BASE).replace(chr(39), chr(34))}}}',
        "workloads/Dockerfile": "FROM scratch\n",
        "docker/bionemo/Dockerfile": "FROM scratch\n",
        "docker/bionemo/versions.json": OTHER_BASE,
        "config/cluster.py": "x = 1\n",
        ".dockerignore": "*\n",
        "LICENSE": "as you like\n",
    }
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git(repository, "init", "--quiet")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "first")
    return repository
