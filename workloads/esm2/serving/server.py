"""The HTTP server, and its end: after SIGTERM it goes on answering for a while, then finishes what it has."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from types import FrameType

import uvicorn

from .app import Service

KEEP_ALIVE_SECONDS = 75
"""Longer than load balancers and SDKs keep idle connections (60 s): they close, not we, so that no request
meets a connection that is being closed."""
log = logging.getLogger("uvicorn.error")


class Server(uvicorn.Server):
    """uvicorn's server with an announced end."""

    def __init__(self, service: Service, *, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                service.app(),
                host=host,
                port=port,
                # The same here and in the image, which has others as well.
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="on",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
            )
        )
        self.failure: BaseException | None = None
        """What ended the feeding of the model, and so the server; most likely its first computation."""
        self._service = service
        service.on_failure = self._fail
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def _fail(self, error: BaseException) -> None:
        log.error("the model cannot be fed any more, so the server ends", exc_info=error)
        self.failure, self.should_exit = error, True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM begins the end; Ctrl-C, or a second signal, ends without waiting for new requests."""
        seconds = self._service.settings.drain_seconds
        if sig != signal.SIGTERM or self._service.is_draining or self._loop is None or not seconds:
            self._service.is_draining = True
            super().handle_exit(sig, frame)
            return
        self._service.is_draining = True
        log.info("SIGTERM: answering for another %d s, then ending", seconds)
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, super().handle_exit, sig, frame)
