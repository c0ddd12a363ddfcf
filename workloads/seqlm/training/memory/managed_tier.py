"""Memory of HyperPod's managed tiered checkpointing, through AWS's client (amzn-sagemaker-checkpointing).

The service keeps bytes by job, rank and step, and copies them between nodes. AWS's DCP writer and reader are
not used, because the reader unpickles what it gets, and every pod of the cluster can write to the service.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from .layout import STATES_KEPT

REQUEST_TIMEOUT = timedelta(minutes=5)
"""Longest wait for the service to take or to send a piece."""


class ManagedTier:
    """Pieces of one job in the managed tier.

    Args:
        name: name of the job; letters, digits, hyphens and underscores.
        rank: rank of this process.
        world_size: number of processes.

    Raises:
        OSError: if the package is missing, or the service does not answer.
    """

    def __init__(self, name: str, rank: int, world_size: int) -> None:
        try:
            from amzn_sagemaker_checkpointing.storage.clients.inmemory.exceptions import (
                InMemoryStorageError,
            )
            from amzn_sagemaker_checkpointing.storage.clients.inmemory.inmemory_client import (
                InMemoryCheckpointClient,
            )
        except ModuleNotFoundError as error:
            raise OSError(
                f"the package amzn-sagemaker-checkpointing is missing: {error}"
            ) from error
        # Failures are reported once by the caller.
        quiet = logging.getLogger(f"{__name__}.client")
        quiet.addHandler(logging.NullHandler())
        quiet.propagate = False
        self._error: type[Exception] = InMemoryStorageError
        self._client = InMemoryCheckpointClient(
            # Ranks of another number of processes are other pieces.
            namespace=f"{name}-{world_size}",
            rank=str(rank),
            world_size=str(world_size),
            steps_retained=STATES_KEPT,
            logger=quiet,
        )

    def create(self) -> None:
        """Create the job's place in the service unless it exists.

        Raises:
            OSError: if the service does not answer.
        """
        with self._as_os_error():
            self._client.get_or_create_namespace()

    def steps(self) -> list[int]:
        """Return the steps of which the service has a piece, newest first; none if it does not answer."""
        return list(self._client.get_latest_checkpoints(limit=STATES_KEPT + 1))

    def put(self, step: int, content: bytes) -> None:
        """Store this process's piece of a state.

        Raises:
            OSError: if the service does not take it.
        """
        with self._as_os_error():
            self._client.put_checkpoint(
                step=step, data=content, timeout=REQUEST_TIMEOUT.total_seconds()
            )

    def get(self, step: int, rank: int) -> bytes | None:
        """Return the piece of a process; None if the service has none.

        Raises:
            OSError: if the service does not answer, or the client finds a wrong checksum.
        """
        with self._as_os_error():
            found = self._client.get_checkpoint(
                step=step, rank=rank, timeout=REQUEST_TIMEOUT.total_seconds()
            )
        return None if found is None else bytes(found)

    def delete(self, step: int) -> None:
        """Delete this process's piece of a state.

        Raises:
            OSError: if the service does not answer.
        """
        with self._as_os_error():
            self._client.delete_checkpoint(step=step)

    @contextmanager
    def _as_os_error(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise OSError(f"HyperPod's managed memory: {error}") from error
