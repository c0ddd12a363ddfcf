"""A server with Grafana's HTTP API, as far as the function that fills a workspace uses it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "glsa_secret"


class Grafana:
    """Refuses what Grafana refuses, and keeps the rest."""

    def __init__(self) -> None:
        self.sources: dict[str, Any] = {}
        self.folders: dict[str, Any] = {}
        self.dashboards: dict[str, Any] = {}
        self.asked: list[str] = []
        self.tokens: set[str] = {TOKEN}
        self.broken: dict[str, tuple[int, str]] = {}
        """Status and text with which requests to a path are answered."""

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        for beginning, (status, text) in self.broken.items():
            if path.startswith(beginning):
                return status, {"message": text}
        if token not in self.tokens:
            return 401, {"message": "Invalid API key"}
        place, _, query = path.partition("?")
        if place == "/api/search":
            (folder,) = re.findall(r"folderUIDs=([\w-]+)", query)
            found = [uid for uid, kept in self.dashboards.items() if kept["folderUid"] == folder]
            return 200, [{"uid": uid, "type": "dash-db"} for uid in found]
        if (method, place) == ("POST", "/api/dashboards/db"):
            return self._put_dashboard(body)
        for kept, collection, item in (
            (self.sources, "/api/datasources", "/api/datasources/uid/"),
            (self.folders, "/api/folders", "/api/folders/"),
            (self.dashboards, "", "/api/dashboards/uid/"),
        ):
            if method == "POST" and place == collection:
                if body["uid"] in kept:
                    return 409, {"message": "already exists"}
                kept[body["uid"]] = body
                return 200, body
            if place.startswith(item):
                return self._item(kept, method, place.removeprefix(item), body)
        return 404, {"message": "Not found"}

    def _put_dashboard(self, body: Any) -> tuple[int, Any]:
        dashboard = body["dashboard"]
        if body["folderUid"] not in self.folders or not dashboard.get("title"):
            return 400, {"message": "folder not found, or no title"}
        if dashboard["uid"] in self.dashboards and not body["overwrite"]:
            return 412, {"message": "The dashboard has been changed by someone else"}
        self.dashboards[dashboard["uid"]] = body
        return 200, {"uid": dashboard["uid"], "status": "success"}

    def _item(self, kept: dict[str, Any], method: str, uid: str, body: Any) -> tuple[int, Any]:
        if uid not in kept:
            return 404, {"message": "not found"}
        if method == "PUT":
            kept[uid] = body
        elif method == "DELETE":
            del kept[uid]
            if kept is self.folders:
                self.dashboards = {
                    k: v for k, v in self.dashboards.items() if v["folderUid"] != uid
                }
        return 200, kept.get(uid, {})


@contextmanager
def answering(grafana: Grafana) -> Iterator[str]:
    """Its address, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            token = self.headers["Authorization"].removeprefix("Bearer ")
            status, answer = grafana.answer(self.command, self.path, token, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
