"""HTTP API with SageMaker's two paths (developer guide, "Custom Inference Code with Hosting Services").

After SIGTERM the server still answers for some seconds, and then completes its open requests.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from .batching import Batcher
from .heads import HeadCheck, Hosts
from .proteins import (
    JSON,
    MAX_ID,
    MEDIA_TYPES,
    PROBLEM_TYPE,
    Answer,
    Problem,
    Protein,
    read_proteins,
    write_answers,
)
from .settings import PREFIX, ServeSettings

if TYPE_CHECKING:  # the module of the model imports torch
    from .model import ServedModel

BODY_SECONDS = 30
"""Seconds allowed between the head of a request and the end of its body."""
DESCRIPTION = Path(__file__).with_name("openapi.yaml")
"""OpenAPI description of the server, without its limits."""
MAX_SHOWN = 60
"""Largest number of characters of a path or header that an answer repeats."""
MAX_ENCODING_SHOWN = 20
"""Largest number of characters of Content-Encoding that an answer repeats."""
_QUALITY = re.compile(r"q=([01](\.\d*)?)")
"""Parameter of a media range in Accept."""
ACCEPT_TURNS = 5
"""Turns of the event loop in which it takes over the connections that it has accepted. It needs two."""
ARRIVAL_SECONDS = 0.2
"""Time in which a server that ends reads the requests of connections that it has accepted."""
KEEP_ALIVE_SECONDS = 75
"""Seconds that idle connections stay open. Load balancers and SDKs close them after 60 s, so that no request
meets a connection that the server is closing."""
STALL_SECONDS = 30.0
"""Seconds between two checks of a connection. If it waits for its client at both, it is closed."""
log = logging.getLogger("uvicorn.error")


class Service:
    """Model, its queue, and whether the server is about to stop."""

    def __init__(
        self, model: "ServedModel", settings: ServeSettings, hosts: Hosts | None = None
    ) -> None:
        """Create the service.

        Args:
            model: model that answers.
            settings: limits.
            hosts: names under which clients may reach the server; by default, every name.
        """
        self.settings = settings
        self._hosts = hosts or Hosts()
        self._description = json.dumps(described(settings))
        self.is_draining = False
        """True from SIGTERM on, while the server still answers."""
        self.on_failure: Callable[[BaseException], None] | None = None
        """Function that is called with the exception if the model cannot be warmed up, so that no request can
        be answered."""
        self.batcher = Batcher(
            model,
            tokens_per_pack=settings.tokens_per_pack or model.tokens_per_pack,
            max_waiting_residues=settings.max_waiting_residues,
            timeout_seconds=settings.timeout_seconds,
        )

    def app(self) -> Starlette:
        """Return the application with its routes."""
        app = Starlette(
            routes=[
                Route("/ping", self._ping, methods=["GET"]),
                Route("/invocations", self._invocations, methods=["POST"]),
                Route("/openapi.json", self._describe, methods=["GET"]),
            ],
            exception_handlers={
                HTTPException: self._plain_problem,
                Problem: self._problem,
                ClientDisconnect: _gone,
                Exception: self._failure,
            },
            middleware=[Middleware(HeadCheck, hosts=self._hosts)],
            lifespan=self._lifespan,
        )
        # Neither SageMaker nor many clients follow a redirect of a POST.
        app.router.redirect_slashes = False
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Feed the model while the server runs."""
        feeding = asyncio.create_task(self.batcher.run())
        feeding.add_done_callback(self._feeding_ended)
        yield
        feeding.cancel()
        await asyncio.wait([feeding])
        self.batcher.close()

    def _feeding_ended(self, feeding: asyncio.Task[None]) -> None:
        error = None if feeding.cancelled() else feeding.exception()
        if error is not None and self.on_failure is not None:
            self.on_failure(error)

    async def _ping(self, request: Request) -> Response:
        """Answer 200 if requests are accepted; nothing is computed, because health checks wait only 2 s."""
        if self.is_draining:
            raise self._refusal("the server is stopping")
        self._check_ready()
        if not self.batcher.is_healthy:
            raise self._refusal("the model failed on its last pack; see the log")
        return Response(status_code=HTTPStatus.OK)

    async def _invocations(self, request: Request) -> Response:
        content_type = _content_type(request)
        media_type = _accepted(request, content_type)
        body = await _body(request, self.settings.max_body_bytes)
        self._check_ready()
        proteins = read_proteins(body, content_type, self.settings)
        answers = await self._answers(request, proteins)
        written = write_answers(proteins, answers, media_type)
        return Response(written, media_type=media_type, headers=self._headers())

    async def _describe(self, request: Request) -> Response:
        return Response(self._description, media_type=JSON)

    async def _answers(self, request: Request, proteins: Sequence[Protein]) -> Sequence[Answer]:
        """Return the model's answers; raise ``ClientDisconnect`` if the client has left."""
        answering = asyncio.create_task(
            self.batcher.answer([protein.tokens for protein in proteins])
        )
        leaving = asyncio.create_task(_disconnected(request))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ClientDisconnect
            return answering.result()
        finally:
            leaving.cancel()
            answering.cancel()

    def _check_ready(self) -> None:
        if not self.batcher.is_ready:
            raise self._refusal(
                "the model is loading; on a GPU its first computation takes minutes"
            )

    def _refusal(self, detail: str) -> Problem:
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": "1"})

    async def _problem(self, request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Problem)
        headers = {**problem.headers, **self._headers()}
        return Response(problem.body(), problem.status, headers, media_type=PROBLEM_TYPE)

    async def _plain_problem(self, request: Request, error: Exception) -> Response:
        """Answer a request for another path or method, which the router refuses."""
        assert isinstance(error, HTTPException)
        got = f"{request.method} {request.url.path[:MAX_SHOWN]!a}"
        detail = f"got {got}; allowed are GET /openapi.json, GET /ping and POST /invocations"
        problem = Problem(HTTPStatus(error.status_code), detail, headers=error.headers or {})
        return await self._problem(request, problem)

    async def _failure(self, request: Request, error: Exception) -> Response:
        """Answer after an unexpected error, which starlette passes on and uvicorn logs."""
        detail = "the server failed on this request; see its log"
        return await self._problem(request, Problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail))

    def _headers(self) -> dict[str, str]:
        """Close connections before the server stops, so that clients reconnect to another server."""
        return {"Connection": "close"} if self.is_draining else {}


def described(settings: ServeSettings) -> dict[str, Any]:
    """Return the OpenAPI description of a server with these limits."""
    found: dict[str, Any] = yaml.safe_load(DESCRIPTION.read_text())
    schemas = found["components"]["schemas"]
    schemas["Id"]["maxLength"] = MAX_ID
    schemas["Sequence"]["maxLength"] = settings.max_residues
    schemas["Request"]["properties"]["proteins"]["maxItems"] = settings.max_proteins
    found["info"]["x-limits"] = {
        PREFIX + name.upper(): value for name, value in vars(settings).items()
    }
    return found


async def _gone(request: Request, error: Exception) -> Response:
    """Answer a client that has left."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


def _content_type(request: Request) -> str:
    """Return the media type of the body, and refuse others than ``MEDIA_TYPES`` and encoded bodies.

    A header that is repeated counts as a list (RFC 9110, 5.3), so no entry hides behind another.
    """
    given = ",".join(request.headers.getlist("content-type"))
    media_type = given.partition(";")[0].strip().lower()
    encoding = ",".join(request.headers.getlist("content-encoding")).strip().lower()
    is_encoded = any(name.strip() not in ("", "identity") for name in encoding.split(","))
    if media_type not in MEDIA_TYPES or is_encoded:
        got = f"got Content-Type {given[:MAX_SHOWN]!a}"
        if is_encoded:
            got += f", encoded {encoding[:MAX_ENCODING_SHOWN]!a}"
        detail = f"{got}; allowed are {' and '.join(MEDIA_TYPES)}, not encoded"
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
    return media_type


def _accepted(request: Request, content_type: str) -> str:
    """Return the type that Accept rates highest (RFC 9110, 12.5.1).

    Of types with the same quality, the one that Accept names first wins, and then the type of the request.
    """
    given = ",".join(request.headers.getlist("accept")) or "*/*"
    ratings = {name: _rating(given, name) for name in MEDIA_TYPES}
    best = max(MEDIA_TYPES, key=lambda name: (ratings[name], name == content_type))
    if not ratings[best].quality:
        detail = f"got Accept {given[:MAX_SHOWN]!a}; answers are {' or '.join(MEDIA_TYPES)}"
        raise Problem(HTTPStatus.NOT_ACCEPTABLE, detail)
    return best


class _Rating(NamedTuple):
    """Rating of a media type by a header Accept; the larger one is preferred."""

    quality: float
    earliness: int
    """Position of the range in the header, negated."""


def _rating(accept: str, media_type: str) -> _Rating:
    """Return the rating by the most specific range in Accept that includes a media type."""
    main_type = media_type.partition("/")[0]
    by_specificity = ("*/*", f"{main_type}/*", media_type)
    best_specificity = -1
    best = _Rating(0.0, 0)
    for position, part in enumerate(accept.lower().split(",")):
        media_range, *parameters = (piece.strip() for piece in part.split(";"))
        if media_range in by_specificity:
            specificity = by_specificity.index(media_range)
            rating = _Rating(_quality(parameters), -position)
            if (specificity, rating) > (best_specificity, best):
                best_specificity = specificity
                best = rating
    return best


def _quality(parameters: Sequence[str]) -> float:
    """Return the parameter ``q`` of a media range, which is 1 if it is missing."""
    for parameter in parameters:
        if match := _QUALITY.fullmatch(parameter):
            return min(1.0, float(match[1]))
    return 1.0


async def _body(request: Request, max_bytes: int) -> bytes:
    """Read the body, up to twice the limit, because a client that is still sending reads no answer."""
    chunks = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= max_bytes:
                    chunks.append(chunk)
                elif size > 2 * max_bytes:
                    break
    except TimeoutError:
        detail = f"the body did not arrive within {BODY_SECONDS} s"
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, detail, headers={"Connection": "close"}) from None
    if size > max_bytes:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has more than {max_bytes} bytes, which is the limit; split the request",
            headers={"Connection": "close"},
        )
    return b"".join(chunks)


async def _disconnected(request: Request) -> None:
    """Wait until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 connection, closed if the client neither sends a head nor reads an answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._seen: tuple[object, ...] = ()
        """State of the connection at the last look."""
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
        """Close the connection if it still waits for its client, as at the last look."""
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, answer the requests that have arrived, and end.

        The kernel accepts connections before the server does. It resets those that wait when the port is
        closed, and a connection that is closed before its request is read. The port is therefore closed when
        no connection waits, and the requests that have arrived by then are read.
        """
        loop = asyncio.get_running_loop()
        listening = [sock for server in self.servers for sock in server.sockets]
        for sock in listening:
            loop.remove_reader(sock.fileno())
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        waiting = [connection for sock in listening for connection in _waiting(sock.fileno())]
        for server in self.servers:
            server.close()
        for connection in waiting:
            await loop.connect_accepted_socket(self._connection, connection)
        await asyncio.sleep(ARRIVAL_SECONDS)
        await super().shutdown(sockets)

    def _connection(self) -> Connection:
        return Connection(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def _fail(self, error: BaseException) -> None:
        log.error("the model stopped working, so the server stops", exc_info=error)
        self.failure = error
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop after some seconds on SIGTERM; stop without further requests on Ctrl-C or a second signal."""
        seconds = self._service.settings.drain_seconds
        is_second = self._service.is_draining
        self._service.is_draining = True
        if sig != signal.SIGTERM or is_second or self._loop is None or not seconds:
            super().handle_exit(sig, frame)
            return
        log.info("SIGTERM: answering for another %d s, then stopping", seconds)
        self._loop.call_soon_threadsafe(
            self._loop.call_later, seconds, super().handle_exit, sig, frame
        )


def _waiting(listening: int) -> list[socket.socket]:
    """Accept the connections that wait at a port, given by its file descriptor."""
    connections: list[socket.socket] = []
    with socket.socket(fileno=os.dup(listening)) as port:
        while True:
            try:
                connection, _ = port.accept()
            except BlockingIOError:
                return connections
            connection.setblocking(False)
            connections.append(connection)
