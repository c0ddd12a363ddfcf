"""Requests made of mutated good ones, of random structure and of plain noise: none is the server's fault."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.workloads.esm2.serving.served import CSV, JSON, CountingModel, Served, serving
from workloads.esm2.serving.settings import ServeSettings

NUM_REQUESTS, NUM_CONNECTIONS = 1500, 150
MAX_BODY_BYTES = 20_000
REFUSALS = {400, 404, 405, 406, 413, 415, 422}
GOOD = [
    (JSON, b'{"proteins": ["MKT", {"id": "P1", "sequence": "LAGV"}]}'),
    (CSV, b"id,sequence\nP1,MKT\nP2,LAGV\n"),
    (CSV, b"MKT\nLAGV\n"),
]
ATOMS: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "MKT",
        "mkt*",
        "\ud800",
        "\0",
        "\u2028",
        "M" * 3000,
    ),
    *({}, [], {"sequence": "MKT"}, {"id": "\x1b[31m", "sequence": "M"}, {"id": {}, "sequence": []}, 10**40),
]
HEADERS = [
    "",
    "*/*",
    JSON,
    CSV,
    "text/csv; charset=latin-1",
    "a" * 500,
    ";;",
    "\xff",
    "application/json, x/y",
]
PIECES = [
    b"GET ",
    b"POST ",
    b"/invocations",
    b" HTTP/1.1\r\n",
    b"Host: x\r\n",
    b"Content-Length: ",
    b"-1",
    b"99999",
]
PIECES += [b"\r\n", b"Transfer-Encoding: chunked\r\n", b"zz\r\n", b"\0", b"\xff\xff", b": ", b"1" * 9000]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    settings = ServeSettings(max_body_bytes=MAX_BODY_BYTES, max_proteins=20, max_residues=100)
    with serving(CountingModel(), settings) as found:
        yield found


def mutated(rng: random.Random, body: bytes) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(body) + 1)
        length = rng.choice([0, 1, 1, rng.randint(0, len(body))])
        noise = rng.randbytes(rng.choice([0, 1, 1, 8]))
        other = rng.choice(GOOD)[1]
        piece = rng.choice(
            [noise, b'"', b",", b"\n", b"{", b"]", b"\\u", other, other * rng.choice([1, 50, 900])]
        )
        body = body[:at] + piece + body[at + length :]
    return body


def structured(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 3 or kind < 0.5:
        return rng.choice(ATOMS)
    if kind < 0.75:
        return [structured(rng, depth + 1) for _ in range(rng.choice([0, 1, 3, 30]))]
    keys = ["proteins", "id", "sequence", "x", "\ud800"]
    return {rng.choice(keys): structured(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def request(rng: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    media_type, body = rng.choice(GOOD)
    kind = rng.random()
    if kind < 0.5:
        body = mutated(rng, body)
    elif kind < 0.85:
        document = structured(rng) if rng.random() < 0.3 else {"proteins": structured(rng)}
        media_type, body = JSON, json.dumps(document).encode()
    else:
        body = rng.randbytes(rng.choice([0, 10, 1000, 30_000]))
    headers = {"Content-Type": media_type}
    for name in ("Content-Type", "Accept", "Content-Encoding"):
        if rng.random() < 0.1:
            headers[name] = rng.choice(HEADERS)
    path = (
        "/invocations" if rng.random() < 0.97 else rng.choice(["/", "/ping", "/%00", "/invocations/?x=%ff"])
    )
    return rng.choice(["POST"] * 30 + ["GET", "PUT", "HEAD"]), path, body, headers


def test_no_request_is_the_server_s_fault(served: Served) -> None:
    rng = random.Random(7)
    seen: set[int] = set()
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    for number in range(NUM_REQUESTS):
        method, path, body, headers = request(rng)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            answer = reply.read()
        except ConnectionError:
            # Beyond twice the limit the server does not read on, and its answer may be lost.
            assert len(body) > 2 * MAX_BODY_BYTES
            connection.close()
            continue
        assert reply.status == 200 or reply.status in REFUSALS, (
            number,
            method,
            path,
            body[:200],
            headers,
            answer,
        )
        if reply.status != 200 and method != "HEAD":
            assert json.loads(answer)["status"] == reply.status
        seen.add(reply.status)
    connection.close()
    assert seen >= {200, 400, 413, 415, 422}, "the fuzz reaches every kind of answer"
    assert served.service.batcher.waiting_residues == 0 and served.service.batcher.is_healthy


def test_noise_instead_of_http_harms_nobody(served: Served) -> None:
    rng = random.Random(8)
    for _ in range(NUM_CONNECTIONS):
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
            answer = b""
            # The server may have closed already.
            with contextlib.suppress(OSError):
                noise = b"".join(rng.choices(PIECES, k=rng.randint(1, 12)))
                client.sendall(noise + rng.randbytes(rng.randint(0, 50)))
                client.shutdown(socket.SHUT_WR)
                answer = client.recv(100)
        assert not answer or answer.split()[1][:1] in (b"2", b"4"), answer
    assert served.invoke({"proteins": ["MKT"]}).status == 200
