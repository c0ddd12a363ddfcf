"""Checks of a request's head, before its body is read.

A web page can give its own name the address 127.0.0.1 (DNS rebinding). A browser then lets the page read the
answers of a server on its user's machine. Its requests name the page in the header Host.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .proteins import MAX_SHOWN, PROBLEM_TYPE, Problem

_LOCALHOST = "localhost"
"""Name of the machine itself. Its subdomains are names of the same machine (RFC 6761)."""


@dataclass(frozen=True)
class Hosts:
    """Names under which clients may reach the server."""

    is_local: bool = False
    """Whether the server listens on the loopback interface alone, whose names are allowed then."""
    named: frozenset[str] = field(default_factory=frozenset)
    """Other names, in small letters. Without any, a server that is not local allows every name."""

    @staticmethod
    def of(listening: str, named: Iterable[str] = ()) -> "Hosts":
        """Return the names for the address that the server listens on, and the names that the user gives."""
        return Hosts(_is_loopback(listening), frozenset(name.lower() for name in named))

    def allow(self, header: str | None) -> bool:
        """Return whether a header Host names this server. Programs without the header are no browsers."""
        if header is None or not (self.is_local or self.named):
            return True
        try:
            host = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        return host in self.named or (self.is_local and _is_loopback(host))

    @property
    def text(self) -> str:
        """Names that are allowed, for messages."""
        own = ["localhost", "loopback addresses"] if self.is_local else []
        return ", ".join([*own, *sorted(self.named)])


class HeadCheck:
    """ASGI middleware that answers requests with a wrong head."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
            return
        answer = Response(problem.body(), problem.status, problem.headers, media_type=PROBLEM_TYPE)
        await answer(scope, receive, send)

    def _problem(self, headers: Headers) -> Problem | None:
        host = headers.get("host")
        if not self._hosts.allow(host):
            return Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"got Host {(host or '')[:MAX_SHOWN]!a}; allowed are {self._hosts.text}; "
                "to allow another name, start the server with --allow-host NAME",
            )
        if "content-length" in headers and "transfer-encoding" in headers:
            # Programs between the client and the server may disagree about the end of such a request.
            return Problem(
                HTTPStatus.BAD_REQUEST,
                "got both Content-Length and Transfer-Encoding; send one of them",
                headers={"Connection": "close"},
            )
        return None


def _is_loopback(host: str) -> bool:
    if host == _LOCALHOST or host.endswith(f".{_LOCALHOST}"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
