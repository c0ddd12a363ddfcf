"""A server under mixed load, whose memory must stay constant: ``python -m tests.fuzz.soak --minutes 10``.

Clients send right requests, wrong ones, requests that they break off and heads that they never end.
The server has a tiny model, in a process of its own. A line per minute says what was answered and how much
memory it has (resident set). The status is 1 if the memory has grown, if a right request did not get the
answer of the beginning, if a request was the server's fault, or if a connection outlived its client.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import http.client
import io
import json
import random
import secrets
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from seqlm.proteins.serving.app import KEEP_ALIVE_SECONDS, STALL_SECONDS
from tests.fuzz.server_requests import framed, noise, request
from tests.workloads.proteins.serving.served import CSV, JSON, free_port
from tests.workloads.proteins.serving.test_shutdown import answering
from tests.workloads.proteins.tiny_models import save_tiny_model

GROWTH = 0.02
"""Share of its memory by which the server may grow after its warm-up."""
TOLERANCE = 1e-2
"""Largest difference between two embeddings of one protein (numbers of about 1), in bf16."""
PROTEINS = [
    "".join(random.Random(number).choices("LAGVSERTIDPKQNFYMHWC", k=5 + 12 * number))
    for number in range(60)
]
PAUSE_SECONDS = 0.01
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Has glibc return large tensors when they are freed. By default it keeps them for later ones of another
length, and grows by a few percent while new lengths come. That would hide what the server itself keeps."""


def is_constant(figures: Sequence[float]) -> bool:
    """Whether the last of five parts is at most ``GROWTH`` above the second; the first is the warm-up."""
    part = len(figures) // 5
    before = statistics.median(figures[part : 2 * part])
    after = statistics.median(figures[-part:])
    return after <= (1 + GROWTH) * before


@dataclass
class Load:
    """The clients, each a thread that calls one of the methods with random numbers of its own."""

    port: int
    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    expected: list[list[float]] = field(default_factory=list)
    """Embeddings of ``PROTEINS``, each from a request of its own."""

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.seconds
        self.expected = [self._embeddings([protein], JSON)[0] for protein in PROTEINS]

    def run(self, client: Callable[[random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.end and not self.faults:
            try:
                client(rng)
            except Exception as error:
                self.faults.append(f"{client.__name__}: {error!r}")
            time.sleep(PAUSE_SECONDS)

    def right(self, rng: random.Random) -> None:
        chosen = rng.choices(range(len(PROTEINS)), k=rng.choice([1, 1, 5, 20]))
        found = self._embeddings([PROTEINS[number] for number in chosen], rng.choice([JSON, CSV]))
        worst = np.abs(np.array(found) - [self.expected[number] for number in chosen]).max()
        assert worst < TOLERANCE, f"an embedding differs by {worst}"
        self.counts["right"] += 1

    def wrong(self, rng: random.Random) -> None:
        method, path, body, headers = request(rng)
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        ) as connection:
            connection.request(method, path, body, headers)
            status = connection.getresponse().status
        assert status < 500, f"{status} for {method} {path} {body[:200]!r}"
        self.counts["wrong"] += 1

    def broken_off(self, rng: random.Random) -> None:
        sent = rng.choice([framed, framed, noise])(rng)
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as client:
            if rng.random() < 0.5:  # a reset in place of an orderly end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(ConnectionError):
                client.sendall(sent[: rng.randint(0, len(sent))])
                time.sleep(rng.choice([0, 0.01, 0.1]))
        self.counts["broken off"] += 1

    def never_ended(self, rng: random.Random) -> None:
        """Send incomplete heads, some of which slowly get more letters; the server closes them all."""
        opened = [socket.create_connection(("127.0.0.1", self.port), timeout=1) for _ in range(20)]
        deadline = time.monotonic() + 3 * STALL_SECONDS
        for client in opened:
            client.sendall(b"POST /invocations HTTP/1.1\r\nX-Slow: "[: rng.randint(0, 38)])
        while opened and time.monotonic() < self.end:
            assert time.monotonic() < deadline, f"{len(opened)} half heads are still open"
            for client in list(opened):
                with contextlib.suppress(TimeoutError):
                    if not self._is_open(client, rng):
                        opened.remove(client)
                        client.close()
                        self.counts["never ended"] += 1
        for client in opened:
            client.close()

    @staticmethod
    def _is_open(client: socket.socket, rng: random.Random) -> bool:
        client.settimeout(0.1)
        try:
            client.sendall(rng.choice([b"", b"a"]))
            return bool(client.recv(1000))
        except ConnectionError:
            return False

    def _embeddings(self, proteins: Sequence[str], media_type: str) -> list[list[float]]:
        body = (
            json.dumps({"proteins": proteins})
            if media_type == JSON
            else "\n".join(["sequence", *proteins])
        )
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        ) as connection:
            connection.request("POST", "/invocations", body, {"Content-Type": media_type})
            reply = connection.getresponse()
            answer = reply.read().decode()
        assert reply.status == 200, f"{reply.status}: {answer}"
        if media_type == JSON:
            return [prediction["embedding"] for prediction in json.loads(answer)["predictions"]]
        return [
            [float(cell) for name, cell in row.items() if name.startswith("embedding_")]
            for row in csv.DictReader(io.StringIO(answer))
        ]


def soak(server: psutil.Process, port: int, seconds: float, seed: int) -> list[str]:
    """Run the clients for this time, and return their failures."""
    load = Load(port, seconds)
    clients = [load.right, load.right, load.wrong, load.wrong, load.broken_off, load.never_ended]
    idle = server.num_fds()
    threads = [
        threading.Thread(target=load.run, args=(client, seed + number))
        for number, client in enumerate(clients)
    ]
    for thread in threads:
        thread.start()
    figures: list[float] = []
    while any(thread.is_alive() for thread in threads):
        time.sleep(1)
        figures.append(server.memory_info().rss / 2**20)
        if len(figures) % 60 == 0:
            print(
                f"{len(figures):5} s {figures[-1]:7.1f} MiB, {server.num_fds()} files; {dict(load.counts)}",
                flush=True,
            )
    deadline = time.monotonic() + KEEP_ALIVE_SECONDS + 2 * STALL_SECONDS
    while (left := server.num_fds() - idle) > 0 and time.monotonic() < deadline:
        time.sleep(1)
    if left > 0:
        load.faults.append(f"{left} connections outlived their clients")
    if len(figures) >= 5 and not is_constant(figures):
        load.faults.append(
            f"memory has grown: {[round(figure) for figure in figures[:: len(figures) // 5]]} MiB"
        )
    missing = {client.__name__.replace("_", " ") for client in clients} - set(load.counts)
    return load.faults + [
        f"no request of the kind {kind} has come to its end" for kind in sorted(missing)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server, and watch its memory.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--seed", type=int, default=secrets.randbits(32), help="seed of another soak"
    )
    options = parser.parse_args()
    print(f"soak for {options.minutes:g} minutes, --seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        save_tiny_model(Path(folder) / "model")
        port = free_port()
        command = [sys.executable, "-m", "seqlm", "serve", "--model", f"{folder}/model"]
        # The log has a line for each request that is not HTTP.
        command = ["bash", "-c", f'exec "$@" >{folder}/log 2>&1', "bash", *command]
        with answering(
            [*command, "--port", str(port)], port, {"OMP_NUM_THREADS": "1", **ALLOCATOR}
        ) as process:
            faults = soak(psutil.Process(process.pid), port, 60 * options.minutes, options.seed)
    print("\n".join(faults) or "memory was constant, every right request was answered", flush=True)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
