"""HTTP server. After SIGTERM it still answers for some seconds, and then completes its open requests."""

import asyncio
import logging
import signal
import socket
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import Service

KEEP_ALIVE_SECONDS = 75
"""Seconds that idle connections stay open. Load balancers and SDKs close them after 60 s, so that no request
meets a connection that the server is closing."""
STALL_SECONDS = 30.0
"""Seconds between two checks of a connection. If it waits for its client at both, it is closed."""
log = logging.getLogger("uvicorn.error")


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 connection, closed if the client neither sends a head nor reads an answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._seen: tuple[object, ...] = ()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)
        # After a reset, uvicorn leaves the timer, which keeps the request and the answer in memory for 75 s.
        self._unset_keepalive_if_required()

    def send_400_response(self, msg: str) -> None:
        # A malformed body also ends its request, because the application can no longer answer the client.
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.abort()
                return
        super().send_400_response(msg)

    def _look(self) -> None:
        is_answering = self.cycle is not None and not self.cycle.response_complete
        is_kept_alive = self.timeout_keep_alive_task is not None
        unsent = self.transport.get_write_buffer_size()
        # One more byte of a head changes none of these values. A request or a reading client does.
        seen = (self.cycle, is_answering, is_kept_alive, unsent)
        waits_for_client = bool(unsent) or not (is_answering or is_kept_alive)
        if waits_for_client and seen == self._seen:
            self.transport.abort()  # close() would wait for a client that does not read
        self._seen = seen
        self._next_look = self.loop.call_later(STALL_SECONDS, self._look)


class Server(uvicorn.Server):
    """uvicorn's server, which announces that it will stop."""

    def __init__(self, service: Service, *, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                service.app(),
                host=host,
                port=port,
                http=Connection,
                loop="asyncio",
                ws="none",
                lifespan="on",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
            )
        )
        self.failure: BaseException | None = None
        """Error that stopped the model and the server, most likely in the first computation."""
        self._service = service
        service.on_failure = self._fail
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def _fail(self, error: BaseException) -> None:
        log.error("the model stopped working, so the server stops", exc_info=error)
        self.failure, self.should_exit = error, True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start to stop on SIGTERM; stop without further requests on Ctrl-C or a second signal."""
        seconds = self._service.settings.drain_seconds
        if sig != signal.SIGTERM or self._service.is_draining or self._loop is None or not seconds:
            self._service.is_draining = True
            super().handle_exit(sig, frame)
            return
        self._service.is_draining = True
        log.info("SIGTERM: answering for another %d s, then stopping", seconds)
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, super().handle_exit, sig, frame)
