"""An HTTP proxy on the loopback interface: the only way to names that DNS does not have."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class ConnectProxy:
    """``hosts`` are the addresses behind names; others are refused."""

    hosts: dict[str, tuple[str, int]]
    connected: list[str] = field(default_factory=list)
    """Names that programs asked for, in order."""
    url: str = ""


@contextmanager
def connect_proxy(hosts: dict[str, tuple[str, int]]) -> Iterator[ConnectProxy]:
    proxy = ConnectProxy(hosts)

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            name = self.path.partition(":")[0]
            proxy.connected.append(name)
            if name not in proxy.hosts:
                self.send_error(403)
                return
            with socket.create_connection(proxy.hosts[name], timeout=10) as server:
                self.send_response(200)
                self.end_headers()
                _exchange(self.connection, server)

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _exchange(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes on in both directions until one side ends."""
    peers = {one: other, other: one}
    while True:
        ready, _, _ = select.select([one, other], [], [], 10)
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            peers[source].sendall(data)
        if not ready:
            return
