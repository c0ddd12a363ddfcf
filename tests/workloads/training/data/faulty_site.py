"""A web server with the faults that downloads meet."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass
class Site:
    """A web site in memory, with the faults a test asks for."""

    files: dict[str, bytes] = field(default_factory=dict)
    break_after_bytes: list[int] = field(default_factory=list)
    """For the next GETs, one entry each: close the connection after that many bytes of the body."""
    statuses: list[int] = field(default_factory=list)
    """Answers to the next requests, in place of the file."""
    head_status: int | None = None
    announced_extra_bytes: int = 0
    """Added to the length in HEAD only."""
    ranges: bool = True
    redirect_to: str = ""
    before_get: Callable[[], None] = lambda: None
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    address: str = ""


def etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:16]}"'


@contextlib.contextmanager
def serve() -> Iterator[Site]:
    """Serve a site on a free port of this machine."""
    state = Site()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            state.before_get()
            self.answer(body=True)

        def plain(self, status: int, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (*headers, ("Content-Length", "0")):
                self.send_header(name, value)
            self.end_headers()

        def answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            state.requests.append((self.command, self.path, self.headers.get("Range")))
            if state.redirect_to:
                return self.plain(302, ("Location", state.redirect_to))
            if state.head_status and not body:
                return self.plain(state.head_status)
            if state.statuses:
                return self.plain(state.statuses.pop(0))
            if path not in state.files:
                return self.plain(404)
            content = state.files[path]
            start = 0
            wanted = self.headers.get("Range")
            unchanged = self.headers.get("If-Range", etag(content)) == etag(content)
            if wanted and state.ranges and unchanged:
                start = int(wanted.removeprefix("bytes=").split("-")[0])
                stop = int(wanted.split("-")[1] or len(content) - 1) + 1
                if start >= len(content):
                    return self.plain(416)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
                part = content[start:stop]
            else:
                self.send_response(200)
                part = content
            length = len(part) + (0 if body else state.announced_extra_bytes)
            self.send_header("Content-Length", str(length))
            self.send_header("ETag", etag(content))
            self.end_headers()
            if body:
                stop_bytes = (
                    state.break_after_bytes.pop(0) if state.break_after_bytes else len(part)
                )
                self.wfile.write(part[:stop_bytes])
                if stop_bytes < len(part):
                    self.close_connection = True

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()
