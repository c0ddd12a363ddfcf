"""Connections that wait for their client are closed, unless they are slow or wait for the model."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Sequence

import pytest

from seqlm.proteins.serving import app as server
from seqlm.proteins.serving.proteins import Answer, Tokens
from seqlm.proteins.serving.settings import ServeSettings
from tests.workloads.proteins.serving.served import CountingModel, Served, serving

STALL_SECONDS = 0.5
PATIENCE = 120.0
PING = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
INVOKE = (
    b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Type: text/csv\r\nContent-Length: 3\r\n\r\n"
)
LARGE = 30_000_000
"""Size of an answer in bytes, above the kernel's buffer for a client that does not read."""


class Talkative(CountingModel):
    def run(self, proteins: Sequence[Tokens]) -> list[Answer]:
        return [{"label": "x" * LARGE} for _ in super().run(proteins)]


@pytest.fixture
def model() -> Talkative:
    return Talkative()


@pytest.fixture
def served(model: Talkative, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(server, "STALL_SECONDS", STALL_SECONDS)
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 1)
    with serving(model, ServeSettings()) as found:
        yield found


@contextlib.contextmanager
def client(served: Served) -> Iterator[socket.socket]:
    with socket.socket() as connected:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connected.settimeout(PATIENCE)
        connected.connect(("127.0.0.1", served.port))
        yield connected


def until_closed(connected: socket.socket, drip: bytes) -> bytes:
    """Return the received bytes until the server closes the connection; the client sends slowly meanwhile."""
    connected.settimeout(0.05)
    received = b""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            connected.sendall(drip)
            part = connected.recv(65_536)
        except TimeoutError:
            continue
        except ConnectionError:
            return received
        if not part:
            return received
        received += part
    raise AssertionError(f"the connection is still open after {received[-100:]!r}")


@pytest.mark.parametrize("start", [b"", PING[:5], PING[:-2] + b"X-Slow: "])
@pytest.mark.parametrize("drip", [b"", b"a"])
def test_an_incomplete_head_closes_the_connection(
    served: Served, start: bytes, drip: bytes
) -> None:
    with client(served) as connected:
        connected.sendall(start)
        assert until_closed(connected, drip) == b""


def test_the_second_head_also_has_a_time_limit(served: Served) -> None:
    with client(served) as connected:
        connected.sendall(PING)
        assert connected.recv(1000).startswith(b"HTTP/1.1 200")
        connected.sendall(PING[:-2] + b"X-Slow: ")
        assert until_closed(connected, b"a") == b""


def test_a_connection_without_a_further_request_is_closed(served: Served) -> None:
    with client(served) as connected:
        connected.sendall(PING)
        assert until_closed(connected, b"").startswith(b"HTTP/1.1 200")


def test_a_body_that_is_not_read_closes_the_connection(served: Served) -> None:
    with client(served) as connected:
        connected.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert until_closed(connected, b"a").startswith(b"HTTP/1.1 404")


def test_a_client_that_does_not_read_its_answer_is_disconnected(served: Served) -> None:
    with client(served) as connected:
        connected.sendall(INVOKE + b"MKT")
        assert connected.recv(10, socket.MSG_PEEK) == b"HTTP/1.1 2"
        deadline = time.monotonic() + PATIENCE
        while served.server.server_state.connections:
            assert time.monotonic() < deadline, "the answer waits for its reader"
            time.sleep(0.05)


def test_a_malformed_body_gets_one_answer(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """This includes a request that the application refuses without reading its body."""
    chunked = INVOKE.replace(b"Content-Length: 3", b"Transfer-Encoding: chunked")
    chunked = chunked.replace(b"/invocations", b"/nowhere")
    with client(served) as connected:
        connected.sendall(chunked + b"3\r\nMKT\r\nno number\r\n")
        answer = until_closed(connected, b"")
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
    assert served.invoke({"proteins": ["MKT"]}).status == 200
    assert not [record for record in caplog.records if record.exc_info]


def test_a_reset_connection_is_released(served: Served) -> None:
    """A remaining timer would keep its request and its answer in memory."""
    with client(served) as connected:
        connected.sendall(PING)
        assert connected.recv(1000).startswith(b"HTTP/1.1 200")
        [connection] = served.server.server_state.connections
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deadline = time.monotonic() + PATIENCE
    while served.server.server_state.connections or connection.timeout_keep_alive_task is not None:
        assert time.monotonic() < deadline, "its timer waits for another request"
        time.sleep(0.05)


def test_a_slow_reader_gets_the_whole_answer(served: Served) -> None:
    with client(served) as connected:
        connected.sendall(INVOKE + b"MKT")
        received = 0
        while received < LARGE:
            part = connected.recv(1 << 20)
            assert part, f"closed after {received} bytes"
            received += len(part)
            time.sleep(len(part) / LARGE * 6 * STALL_SECONDS)


def test_slow_computations_do_not_close_the_connection(served: Served, model: Talkative) -> None:
    model.gate.clear()
    with client(served) as connected:
        # The body also arrives in pieces.
        connected.sendall(INVOKE + b"M")
        time.sleep(3 * STALL_SECONDS)
        connected.sendall(b"KT")
        assert model.entered.acquire(timeout=PATIENCE)
        time.sleep(3 * STALL_SECONDS)
        model.gate.set()
        assert connected.recv(12).startswith(b"HTTP/1.1 200")
