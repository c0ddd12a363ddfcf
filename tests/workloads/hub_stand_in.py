"""Stand-in for the Hugging Face hub: the routes that HfApi calls to create a repository and push a folder."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Hub:
    token: str
    url: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    """Repositories by id."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Committed files, of the one repository that a test pushes."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by SHA-256."""
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and Authorization of each request."""

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, Any]:
        body = self._body(request)
        path = urlsplit(request.path).path
        said = request.headers.get("Authorization")
        self.asked.append((request.command, path, said))
        if path.startswith("/objects/"):  # the address alone gives access, as on S3
            self.objects[path.removeprefix("/objects/")] = body
            return 200, {}
        if said != f"Bearer {self.token}":
            return 401, {"error": f"Invalid credentials in Authorization header: {said}"}
        return self._api(request.command, path, body)

    def _api(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        name = "/".join(path.removeprefix("/api/models").removeprefix("/api").split("/")[1:3])
        if path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given['organization']}/{given['name']}"
            exists = name in self.private
            self.private.setdefault(name, given["visibility"] == "private")
            return 409 if exists else 200, {"url": f"{self.url}/{name}", "id": name}
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.url}/objects/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return 200, {"transfer": "basic", "objects": objects}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            return 200, {"files": files}
        if "/commit/" in path:
            self._commit([json.loads(line) for line in body.splitlines()])
            return 200, {
                "commitUrl": f"{self.url}/{name}/commit/0",
                "commitOid": "0" * 40,
                "success": True,
            }
        if "/tree/" in path:
            return 200, [
                {"type": "file", "path": file, "size": len(data), "oid": "0" * 40}
                for file, data in self.files.items()
            ]
        if method == "GET" and name in self.private:
            return 200, {"id": name, "private": self.private[name], "sha": "0" * 40, "siblings": []}
        return 404, {"error": f"not found: {path}"}

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "file":
                    self.files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    data = self.objects[value["oid"]]
                    assert (
                        hashlib.sha256(data).hexdigest() == value["oid"]
                        and len(data) == value["size"]
                    )
                    self.files[value["path"]] = data
                case "deletedFile":
                    del self.files[value["path"]]

    def _body(self, request: BaseHTTPRequestHandler) -> bytes:
        if request.headers.get("Transfer-Encoding") != "chunked":
            return request.rfile.read(int(request.headers.get("Content-Length") or 0))
        parts = []
        while size := int(request.rfile.readline(), 16):
            parts.append(request.rfile.read(size))
            request.rfile.readline()
        request.rfile.readline()
        return b"".join(parts)


@contextmanager
def hub(token: str) -> Iterator[Hub]:
    made = Hub(token)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, value = made.answer(self)
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing: ``asked`` has the requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield made
        server.shutdown()
