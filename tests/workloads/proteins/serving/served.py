"""Server in a thread of the test's process, and a model whose speed the test controls."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from seqlm.proteins.serving.app import Server, Service
from seqlm.proteins.serving.heads import Hosts
from seqlm.proteins.serving.model import ServedModel
from seqlm.proteins.serving.proteins import Answer, Tokens
from seqlm.proteins.serving.settings import ServeSettings

START_SECONDS = 120.0
JSON = "application/json"
CSV = "text/csv"


class CountingModel(ServedModel):
    """Model that answers with the length and the first token; it computes only while its gate is open."""

    tokens_per_pack = 16_384

    def __init__(self) -> None:
        self.packs: list[list[int]] = []
        """Lengths of the proteins of each pack."""
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.fails = False
        self.fails_from = 10**9
        """Length of a protein at which the model fails."""
        self.warm = threading.Event()
        self.warm.set()
        self.is_broken = False

    def warm_up(self) -> None:
        assert self.warm.wait(30)
        if self.is_broken:
            raise ValueError("the answers are not finite")

    def run(self, proteins: Sequence[Tokens]) -> list[Answer]:
        self.packs.append([len(tokens) for tokens in proteins])
        self.entered.release()
        assert self.gate.wait(30)
        if self.fails or max(map(len, proteins)) >= self.fails_from:
            raise RuntimeError("this device is broken")
        return [
            {
                "label": f"of {len(tokens)}",
                "probabilities": {"long": len(tokens) / 1000, "short": 1 - len(tokens) / 1000},
                "first": int(tokens[0]),
            }
            for tokens in proteins
        ]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    port: int
    service: Service
    server: Server

    def send(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body or None, named)
            answer = connection.getresponse()
            return Reply(
                answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
            )
        finally:
            connection.close()

    def invoke(self, body: object, content_type: str = JSON, **headers: str) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", "/invocations", raw, Content_Type=content_type, **headers)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def serving(
    model: ServedModel, settings: ServeSettings, *, is_ready: bool = True
) -> Iterator[Served]:
    """Run a server that listens and, unless ``is_ready`` is False, has warmed up its model."""
    service = Service(model, settings, Hosts.of("127.0.0.1", ["x", "proxy.example"]))
    server = Server(service, host="127.0.0.1", port=free_port())
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + START_SECONDS
    while not (server.started and (service.batcher.is_ready or not is_ready)):
        assert thread.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield Served(server.config.port, service, server)
    finally:
        if isinstance(model, CountingModel):
            model.gate.set()
            model.warm.set()
        server.should_exit = True
        thread.join(START_SECONDS)
        assert not thread.is_alive()
