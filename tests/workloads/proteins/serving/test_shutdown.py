"""After SIGTERM under load, every sent request is answered, and then the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from seqlm.proteins.serving.app import Server, Service
from seqlm.proteins.serving.settings import ServeSettings
from tests.workloads.proteins.serving.served import CountingModel, free_port

REPOSITORY = Path(__file__).parents[4]
PATIENCE = 120.0
NUM_CLIENTS = 12
BODY = b'{"proteins": ["MKTLAGV", "MKT"]}'


@contextlib.contextmanager
def server(seconds: float, **settings: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tests.workloads.proteins.serving.slow_server",
        str(port),
        str(seconds),
    ]
    environment = {f"ESM2_SERVE_{name.upper()}": str(value) for name, value in settings.items()}
    with answering(command, port, environment) as process:
        yield port, process


@contextlib.contextmanager
def answering(
    command: list[str], port: int, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server process and wait until it answers /ping."""
    process = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **environment})
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError):
                if ping(port) == 200:
                    break
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def ping(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status
    finally:
        connection.close()


@dataclass
class Clients:
    """Clients, each on one connection until an answer announces that the server closes it."""

    port: int
    answered: list[int] = field(default_factory=list)
    """Status codes of the answers."""
    lost: list[str] = field(default_factory=list)
    told: int = 0
    """Clients whose last answer announced that."""

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            while True:
                try:
                    connection.request(
                        "POST", "/invocations", BODY, {"Content-Type": "application/json"}
                    )
                    answer = connection.getresponse()
                    answer.read()
                except (OSError, http.client.HTTPException) as error:
                    self.lost.append(repr(error))
                    return
                self.answered.append(answer.status)
                if answer.getheader("connection") == "close":
                    self.told += 1
                    return


def test_sigterm_under_load_loses_no_request() -> None:
    with server(0.02, drain_seconds=4) as (port, process):
        clients = Clients(port)
        threads = [threading.Thread(target=clients.run) for _ in range(NUM_CLIENTS)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + PATIENCE
        while len(clients.answered) < 10 * NUM_CLIENTS:
            assert time.monotonic() < deadline and not clients.lost
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        while (status := ping(port)) != 503:
            assert status == 200 and time.monotonic() < deadline
        # Clients that have not noticed yet are served as before.
        late = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        late.request("POST", "/invocations", BODY, {"Content-Type": "application/json"})
        answer = late.getresponse()
        assert (answer.status, answer.getheader("connection")) == (200, "close")
        for thread in threads:
            thread.join(PATIENCE)
        assert process.wait(PATIENCE) == -signal.SIGTERM
    assert clients.lost == [] and set(clients.answered) == {200}
    assert clients.told == NUM_CLIENTS


def test_running_requests_are_completed_without_a_drain() -> None:
    with server(3.0, drain_seconds=0) as (port, process):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("POST", "/invocations", BODY, {"Content-Type": "application/json"})
        time.sleep(1)  # until the request is in the model, which takes three seconds
        process.send_signal(signal.SIGTERM)
        answer = connection.getresponse()
        assert answer.status == 200 and b'"length":7' in answer.read()
        assert process.wait(PATIENCE) == -signal.SIGTERM


def test_connections_that_wait_in_the_kernel_are_answered() -> None:
    """The kernel accepts them while the server is busy, and would reset them when the port is closed."""
    settings = ServeSettings.of({})

    async def end_while_clients_wait() -> list[bytes]:
        running = Server(Service(CountingModel(), settings), host="127.0.0.1", port=free_port())
        running.config.load()
        running.lifespan = running.config.lifespan_class(running.config)
        await running.startup()
        # The event loop does not run in between, so that no connection is accepted by the server.
        clients = [socket.create_connection(("127.0.0.1", running.config.port)) for _ in range(20)]
        for client in clients:
            client.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        await running.shutdown()
        answers = []
        for client in clients:
            client.settimeout(PATIENCE)
            answers.append(client.recv(100))
            client.close()
        return answers

    answers = asyncio.run(end_while_clients_wait())
    assert [answer[:9] for answer in answers] == [b"HTTP/1.1 "] * 20
