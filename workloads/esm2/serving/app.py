"""The two paths of SageMaker's contract (developer guide, "Custom Inference Code with Hosting Services")."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from .answers import Answer, write_answers
from .batching import Batcher, Model
from .problems import MEDIA_TYPE, Problem
from .proteins import MEDIA_TYPES, Protein, read_proteins
from .settings import ServeSettings

BODY_SECONDS = 30
"""Between the head of a request and the end of its body."""


class Service:
    """The model, its queue, and whether the server is about to end."""

    def __init__(self, model: Model, settings: ServeSettings) -> None:
        self.settings = settings
        self.is_draining = False
        self.on_failure: Callable[[BaseException], None] | None = None
        """Called with the exception if the model cannot be warmed up, without which nothing is answered."""
        self.batcher = Batcher(
            model,
            tokens_per_pack=settings.tokens_per_pack or model.tokens_per_pack,
            max_waiting_residues=settings.max_waiting_residues,
            timeout_seconds=settings.timeout_seconds,
        )

    def app(self) -> Starlette:
        app = Starlette(
            routes=[
                Route("/ping", self._ping, methods=["GET"]),
                Route("/invocations", self._invocations, methods=["POST"]),
            ],
            exception_handlers={
                HTTPException: self._plain_problem,
                Problem: self._problem,
                ClientDisconnect: _gone,
                Exception: self._failure,
            },
            lifespan=self._lifespan,
        )
        # Neither SageMaker nor many clients follow a redirect of a POST.
        app.router.redirect_slashes = False
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
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
        """200 while requests are welcome; nothing is computed, since health checks wait 2 s."""
        if self.is_draining:
            raise self._refusal("the server is about to end")
        self._check_ready()
        if not self.batcher.is_healthy:
            raise self._refusal("the model failed on its last pack; the log says why")
        return Response(status_code=HTTPStatus.OK)

    async def _invocations(self, request: Request) -> Response:
        content_type, accepted = _content_type(request), _accepted(request)
        body = await _body(request, self.settings.max_body_bytes)
        self._check_ready()
        proteins = read_proteins(body, content_type, self.settings)
        answers = await self._answers(request, proteins)
        media_type = accepted or content_type
        written = write_answers([protein.id for protein in proteins], answers, media_type)
        return Response(written, media_type=media_type, headers=self._headers())

    async def _answers(self, request: Request, proteins: Sequence[Protein]) -> Sequence[Answer]:
        """The model's; ``ClientDisconnect`` if the client does not wait for them."""
        answering = asyncio.create_task(self.batcher.answer([protein.tokens for protein in proteins]))
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
            raise self._refusal("the model is loading: it computes for the first time, on a GPU for minutes")

    def _refusal(self, detail: str) -> Problem:
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers={"Retry-After": "1"})

    async def _problem(self, request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Problem)
        headers = {**problem.headers, **self._headers()}
        return Response(problem.body(), problem.status, headers, media_type=MEDIA_TYPE)

    async def _plain_problem(self, request: Request, error: Exception) -> Response:
        """What the router refuses: another path, another method."""
        assert isinstance(error, HTTPException)
        got = f"{request.method} {request.url.path[:60]!a}"
        detail = f"got {got}; allowed are GET /ping and POST /invocations"
        problem = Problem(HTTPStatus(error.status_code), detail, headers=error.headers or {})
        return await self._problem(request, problem)

    async def _failure(self, request: Request, error: Exception) -> Response:
        """What nobody has thought of; starlette hands it on, and uvicorn logs it."""
        detail = "the server failed on this request; its log says why"
        return await self._problem(request, Problem(HTTPStatus.INTERNAL_SERVER_ERROR, detail))

    def _headers(self) -> dict[str, str]:
        """Clients that keep connections open come back by a new one, and so to another server."""
        return {"Connection": "close"} if self.is_draining else {}


async def _gone(request: Request, error: Exception) -> Response:
    """Nobody reads it."""
    return Response(status_code=HTTPStatus.BAD_REQUEST)


def _content_type(request: Request) -> str:
    given = request.headers.get("content-type", "")
    media_type = given.partition(";")[0].strip().lower()
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if media_type not in MEDIA_TYPES or encoding != "identity":
        got = f"Content-Type {given[:60]!a}" + (
            "" if encoding == "identity" else f", encoded {encoding[:20]!a}"
        )
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"got {got}; allowed are {' and '.join(MEDIA_TYPES)}, not encoded",
        )
    return media_type


def _accepted(request: Request) -> str | None:
    """The first type of Accept that we write; None if any will do."""
    given = request.headers.get("accept", "*/*")
    wanted = [part.partition(";")[0].strip().lower() for part in given.split(",")]
    for media_type in wanted:
        if media_type in MEDIA_TYPES:
            return media_type
        if media_type in ("*/*", "", "application/*", "text/*"):
            return {"application/*": MEDIA_TYPES[0], "text/*": MEDIA_TYPES[1]}.get(media_type)
    raise Problem(
        HTTPStatus.NOT_ACCEPTABLE, f"got Accept {given[:60]!a}; answers are {' or '.join(MEDIA_TYPES)}"
    )


async def _body(request: Request, max_bytes: int) -> bytes:
    """Read the body, and read on to twice the limit: who is still sending does not see the answer."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size <= max_bytes:
                    chunks.append(chunk)
                elif size > 2 * max_bytes:
                    break
    except TimeoutError:
        detail = f"the body did not come in {BODY_SECONDS} s"
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, detail, headers={"Connection": "close"}) from None
    if size > max_bytes:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has more than {max_bytes} bytes, the most that is allowed: split the request",
            headers={"Connection": "close"},
        )
    return b"".join(chunks)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
