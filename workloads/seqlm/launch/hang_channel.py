"""Channel by which the agents of a step's nodes report a hang to each other.

The first node's agent serves connections of all nodes, and sends them the number of nodes per event. The
shared file system is not used: 1,000 nodes that look for a file every second are all that its metadata server
can answer. Nor is the process group, which is the part that hangs.
"""

import asyncio
import contextlib
import socket
import sys
import threading
from enum import StrEnum

from seqlm.training.data.pauses import spread

CONNECT_SECONDS = 5.0
"""Longest wait for a connection to the first node."""
RETRY_SECONDS = 2.0
"""Mean time between two tries to connect."""
BROADCAST_SECONDS = 0.1
"""Shortest time between two messages to all nodes, so that 1,000 events are a few messages."""
MOST_WAITING = 4096
"""Connections that wait to be accepted: all nodes of a step connect at once."""
KEEPALIVE_SECONDS = 60
"""Silence after which the kernel probes the connection. Nothing is sent if nothing hangs, and the security
groups of newer instance types drop a connection after 350 seconds without packets."""
CLOSE_SECONDS = 2.0
"""Longest wait for a thread's end. A try to connect to a dead node may delay it; the agent ends then."""


class Event(StrEnum):
    """Events that the nodes of a step count."""

    HUNG = "hung"
    """The node's processes have hung, or it has learned that those of another node have."""
    STACKS = "stacks"
    """The stacks of the node's running processes are complete."""
    ENDED = "ended"
    """The node's record of the attempt's end is written."""


class HangServer:
    """Counts of nodes per event for all nodes of a step, while the context is open."""

    def __init__(self, port: int, run_id: str) -> None:
        self._port = port
        self._run_id = run_id
        self._nodes: dict[Event, set[str]] = {event: set() for event in Event}
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="hang-server", daemon=True)

    def __enter__(self) -> "HangServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # The loop is closed already if the port could not be opened.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except OSError as error:
                print(
                    f"hang watch: port {self._port} cannot be opened ({error}); each node detects only its "
                    "own hang, and stacks of slow nodes may be lost",
                    file=sys.stderr,
                )

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._receive, port=self._port, backlog=MOST_WAITING)
        async with server:
            sender = asyncio.create_task(self._send_changes())
            await self._over.wait()
            sender.cancel()
            for writer in self._writers:
                writer.close()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receive a line with the names of the step and the node, and then a line per event."""
        try:
            run_id, node = (await reader.readline()).decode().split()
            if run_id != self._run_id:  # an agent of another step, which had this port
                return
            self._writers.add(writer)
            writer.write(self._message())
            while line := await reader.readline():
                self._nodes[Event(line.decode().strip())].add(node)
                self._changed.set()
        # A broken connection, another program's words, or the end of the server, which Python 3.11 would log.
        except (OSError, ValueError, asyncio.CancelledError):
            return
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _send_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            message = self._message()
            for writer in self._writers:
                writer.write(message)
            await asyncio.sleep(BROADCAST_SECONDS)

    def _message(self) -> bytes:
        lines = [f"{event} {len(nodes)}\n" for event, nodes in self._nodes.items()]
        return "".join(lines).encode()


class HangChannel:
    """A node's connection to the server, while the context is open.

    A thread of its own connects and reads, so that a node which does not answer never blocks the watch.

    Args:
        node: name of this node.
        host: first node; empty for a step of one node, which needs no server.
        port: port of the server.
        run_id: name of the step.
    """

    def __init__(self, node: str, *, host: str = "", port: int = 0, run_id: str = "") -> None:
        self._node = node
        self._host = host
        self._port = port
        self._run_id = run_id
        self._counts = dict.fromkeys(Event, 0)
        self._announced: list[Event] = []
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        """Guards the connection and the events that are sent on it."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hang-channel", daemon=True)

    def __enter__(self) -> "HangChannel":
        if self._host:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._lock, contextlib.suppress(OSError):
            if self._connection:
                self._connection.shutdown(socket.SHUT_RDWR)
        if self._host:
            self._thread.join(CLOSE_SECONDS)

    def announce(self, event: Event) -> None:
        """Report an event of this node, now or as soon as the server answers."""
        with self._lock:
            self._announced.append(event)
            self._counts[event] = max(1, self._counts[event])
            if self._connection:
                # A broken connection is opened again, and all events are sent again.
                with contextlib.suppress(OSError):
                    self._connection.sendall(f"{event}\n".encode())

    def count(self, event: Event) -> int:
        """Return the number of nodes that are known to have announced the event."""
        return self._counts[event]

    def _run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError, ValueError):
                address = (self._host, self._port)
                with socket.create_connection(address, timeout=CONNECT_SECONDS) as connection:
                    connection.settimeout(None)
                    _keep_alive(connection)
                    self._read(connection)
            self._over.wait(spread(RETRY_SECONDS))

    def _read(self, connection: socket.socket) -> None:
        """Send what this node has announced, and take the counts until the connection ends."""
        with self._lock:
            lines = [f"{self._run_id} {self._node}", *self._announced]
            connection.sendall("".join(f"{line}\n" for line in lines).encode())
            self._connection = connection
        try:
            with connection.makefile() as stream:
                for line in stream:
                    event, count = line.split()
                    self._counts[Event(event)] = max(int(count), self._counts[Event(event)])
        finally:
            with self._lock:
                self._connection = None


def _keep_alive(connection: socket.socket) -> None:
    """Keep a silent connection open. A peer that has vanished ends it, after which it is opened again."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_SECONDS // 4)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
