"""Stand-in for AWS's client of HyperPod's managed memory (amzn-sagemaker-checkpointing 1.1.3), with a folder
in place of the service."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

PACKAGE = "amzn_sagemaker_checkpointing"
CLIENT_MODULE = f"{PACKAGE}.storage.clients.inmemory.inmemory_client"
ERRORS_MODULE = f"{PACKAGE}.storage.clients.inmemory.exceptions"


class InMemoryStorageError(Exception):
    pass


class InMemoryCheckpointClient:
    service: Path
    """Folder that stands for the service; set by ``install``."""

    def __init__(
        self,
        namespace: str,
        rank: str,
        world_size: str,
        config: Any = None,
        metadata_file_count: int = 1,
        steps_retained: int = 3,
        logger: logging.Logger | None = None,
    ) -> None:
        self._folder = self.service / namespace
        self._rank = int(rank)
        self._steps_retained = steps_retained

    def get_or_create_namespace(
        self,
        timeout: float | None = None,
        retries: int | None = None,
        retry_backoff: float | None = None,
    ) -> None:
        self._check()
        self._folder.mkdir(exist_ok=True)

    def get_latest_checkpoints(
        self,
        limit: int = 5,
        timeout: float | None = None,
        retries: int | None = None,
        retry_backoff: float | None = None,
    ) -> list[int]:
        """Like the client, answer with an empty list if there is no service."""
        steps = {int(path.name) for path in self._folder.glob("*/*")}
        return sorted(steps, reverse=True)[:limit]

    def put_checkpoint(
        self,
        step: int | str,
        data: bytes | str | BinaryIO,
        metadata_index: int | None = None,
        rank: int | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        retry_backoff: float | None = None,
    ) -> None:
        self._check()
        assert isinstance(data, bytes)
        path = self._path(step, rank)
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".partial").write_bytes(data)
        path.with_suffix(".partial").rename(path)
        for old in sorted(path.parent.iterdir(), key=lambda found: int(found.name))[
            : -self._steps_retained
        ]:
            old.unlink()

    def get_checkpoint(
        self,
        step: int | str,
        metadata_index: int | None = None,
        rank: int | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        retry_backoff: float | None = None,
    ) -> bytes | None:
        self._check()
        path = self._path(step, rank)
        return path.read_bytes() if path.exists() else None

    def delete_checkpoint(
        self,
        step: int | str,
        metadata_index: int | None = None,
        rank: int | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        retry_backoff: float | None = None,
    ) -> None:
        self._check()
        self._path(step, rank).unlink(missing_ok=True)

    def _check(self) -> None:
        if not self.service.is_dir():
            raise InMemoryStorageError("connection refused")

    def _path(self, step: int | str, rank: int | None) -> Path:
        return self._folder / str(self._rank if rank is None else rank) / str(step)


def install(service: Path) -> None:
    """Make this process import the stand-in as the package, with a folder as the service."""
    InMemoryCheckpointClient.service = service
    for name in (CLIENT_MODULE, ERRORS_MODULE):
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), ModuleType(parts[end - 1]))
    sys.modules[CLIENT_MODULE].__dict__["InMemoryCheckpointClient"] = InMemoryCheckpointClient
    sys.modules[ERRORS_MODULE].__dict__["InMemoryStorageError"] = InMemoryStorageError


def stop(service: Path) -> None:
    """Let the service be gone, with all that it had."""
    shutil.rmtree(service)
