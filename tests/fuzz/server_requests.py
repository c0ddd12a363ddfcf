"""Requests for the server: mutations of good ones, random structures, almost HTTP, and noise."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.workloads.proteins.serving.served import CSV, JSON

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
    *(
        {},
        [],
        {"sequence": "MKT"},
        {"id": "\x1b[31m", "sequence": "M"},
        {"id": {}, "sequence": []},
        10**40,
    ),
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
    *(
        b"GET ",
        b"POST ",
        b"/invocations",
        b" HTTP/1.1\r\n",
        b"Host: x\r\n",
        b"Content-Length: ",
        b"-1",
        b"99999",
    ),
    *(
        b"\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"zz\r\n",
        b"\0",
        b"\xff\xff",
        b": ",
        b"1" * 9000,
    ),
]
METHODS = [b"POST"] * 12 + [
    b"GET",
    b"PUT",
    b"HEAD",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"X" * 20,
]
TARGETS = [
    *[b"/invocations"] * 10,
    *(
        b"/ping",
        b"*",
        b"http://x/invocations",
        b"/invocations?" + b"a" * 3000,
        b"/invocations/../ping",
    ),
    *(b"//invocations", b"/%2e%2e", b"/\xc3\xa9", b"x:443"),
]
VERSIONS = [b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/0.9"]
OTHER_HEADERS = [
    *(
        b"Host: y",
        b"Expect: 100-continue",
        b"Expect: \xff",
        b"Connection: close",
        b"Connection: keep-alive, x",
    ),
    *(
        b"Connection: upgrade\r\nUpgrade: websocket",
        b"Accept: \xff\xfe",
        b"Accept: */*;q=0",
        b"Accept: text/csv",
    ),
    *(
        b"Content-Type: \xe9",
        b"Content-Encoding: gzip",
        b"Content-Encoding: identity\r\nContent-Encoding: gzip",
        b"A: b\r\n folded",
        b": nameless",
        b"No colon",
    ),
    *(b"X-" + b"a" * 200 + b": " + b"b" * 9000, b"Cookie: \0\x07", b"Content-Length: 7"),
]
CHUNK_ENDS = [*[b"0\r\n\r\n"] * 3, b"0\r\nX: y\r\n\r\n", b"-1\r\n", b"f" * 17 + b"\r\n", b""]


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
        media_type = JSON
        body = json.dumps(document).encode()
    else:
        body = rng.randbytes(rng.choice([0, 10, 1000, 30_000]))
    headers = {"Content-Type": media_type}
    for name in ("Content-Type", "Accept", "Content-Encoding"):
        if rng.random() < 0.1:
            headers[name] = rng.choice(HEADERS)
    if rng.random() < 0.03:
        headers["Host"] = rng.choice(["evil.example", "[::1", "localhost:1", "a@127.0.0.1", ""])
    path = (
        "/invocations"
        if rng.random() < 0.97
        else rng.choice(["/", "/ping", "/%00", "/invocations/?x=%ff"])
    )
    return rng.choice(["POST"] * 30 + ["GET", "PUT", "HEAD"]), path, body, headers


def framed(rng: random.Random) -> bytes:
    """A request whose parts are HTTP, more or less, and do not always belong together."""
    body = GOOD[0][1][: rng.choice([None, None, None, 20])]
    headers = [
        b"Content-Type: application/json",
        *rng.choices(OTHER_HEADERS, k=rng.choice([0, 0, 1, 2])),
    ]
    if rng.random() < 0.9:
        headers.append(b"Host: x")
    framing = rng.choice(["length"] * 3 + ["chunks", "both", "wrong", "none", "unknown"])
    if framing in ("length", "both"):
        headers.append(b"Content-Length: %d" % len(body))
    if framing in ("chunks", "both"):
        headers.append(b"Transfer-Encoding: chunked")
        cut = rng.randrange(1, len(body))
        chunks = [b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in (body[:cut], body[cut:])]
        body = b"".join([*chunks, rng.choice(CHUNK_ENDS)])
    if framing == "wrong":
        headers.append(b"Content-Length: %d" % (len(body) + rng.choice([-5, 5, 10**6, 10**30])))
    if framing == "unknown":
        headers.append(
            b"Transfer-Encoding: " + rng.choice([b"gzip", b"chunked, chunked", b"identity"])
        )
    rng.shuffle(headers)
    line = b" ".join([rng.choice(METHODS), rng.choice(TARGETS), rng.choice(VERSIONS)])
    return b"\r\n".join([line, *headers, b"", body])


def noise(rng: random.Random) -> bytes:
    return b"".join(rng.choices(PIECES, k=rng.randint(1, 12))) + rng.randbytes(rng.randint(0, 50))
