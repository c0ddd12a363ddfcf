"""A stand-in of Kubernetes' API server, for the real kubectl: it keeps objects, shows logs and runs commands.

What is created is checked by the schemas, unknown fields included. No controller is behind it: tests say what
became of a job.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.job_schemas.validation import check

KINDS = {
    "v1": {
        "namespaces": "Namespace",
        "nodes": "Node",
        "pods": "Pod",
        "configmaps": "ConfigMap",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    "apps/v1": {"deployments": "Deployment"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "kubeflow.org/v1": {"pytorchjobs": "PyTorchJob"},
    "sagemaker.amazonaws.com/v1": {"hyperpodpytorchjobs": "HyperPodPyTorchJob"},
    "kueue.x-k8s.io/v1beta1": {"localqueues": "LocalQueue", "workloads": "Workload"},
}
CLUSTER_WIDE = {"Namespace", "Node"}
PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<kind>\w+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>\w+))?"
)
WEBSOCKET_KEY = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""RFC 6455, 1.3."""
STDOUT = 1
STDERR = 2
STATUS = 3
"""Channels of v5.channel.k8s.io."""


@dataclass
class Objects:
    """Objects of the cluster."""

    kept: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    """Objects by resource, namespace and name."""
    logs: dict[str, str] = field(default_factory=dict)
    """Logs of pods, by name."""
    missing_groups: set[str] = field(default_factory=set)
    """API groups whose kinds are not installed."""
    refused: dict[str, str] = field(default_factory=dict)
    """Resources that may not be created, and why."""
    unknown: set[str] = field(default_factory=set)
    """Fields of a spec that the server's kinds have not; it drops them."""
    shared: Path | None = None
    """Folder of this machine in place of /fsx, for commands in pods."""
    deleted: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def clear(self) -> None:
        self.__dict__.update(Objects().__dict__)

    def add(self, resource: str, namespace: str, name: str, **content: Any) -> dict[str, Any]:
        version = next(version for version, kinds in KINDS.items() if resource in kinds)
        metadata = {"name": name, "namespace": namespace, "uid": str(uuid.uuid4())} | content.pop(
            "metadata", {}
        )
        made = {
            "apiVersion": version,
            "kind": KINDS[version][resource],
            "metadata": metadata,
            **content,
        }
        self.kept[resource, namespace, name] = made
        return made

    def of(self, resource: str) -> list[dict[str, Any]]:
        return [made for (kind, _, _), made in self.kept.items() if kind == resource]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: Objects

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if (answer := self._discovery(path)) is not None:
            self._answer(200, answer)
            return
        found = self._found()
        if found is None:
            return
        kind, namespace, name, sub = found
        if sub == "exec":
            self._exec()
        elif sub == "log":
            since = self._query().get("sinceTime", [""])[0]
            self.objects.asked.append(f"log {name} {since}".strip())
            # Lines are as old as the pod.
            self._text("" if since else self.objects.logs.get(name or "", ""))
        elif name:
            made = self.objects.kept.get((kind, namespace, name))
            self._answer(200, made) if made else self._refuse(
                404, "NotFound", f'{kind} "{name}" not found'
            )
        else:
            version = next(version for version, kinds in KINDS.items() if kind in kinds)
            listed = {"kind": f"{KINDS[version][kind]}List", "apiVersion": version}
            self._answer(200, listed | self._page(self._items(kind, namespace)))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = self._found()
        if found is None:
            return
        kind, namespace, _, _ = found
        is_trial = "dryRun" in self._query()
        self.objects.asked.append(
            f"{'try' if is_trial else 'create'} {kind} {body['metadata']['name']}"
        )
        if kind in self.objects.refused:
            self._refuse(403, "Forbidden", self.objects.refused[kind])
            return
        try:
            check(body)
        except Exception as error:  # whatever the schemas raise, the server says
            self._refuse(422, "Invalid", str(error).splitlines()[0])
            return
        metadata = body["metadata"] | {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        made = body | {"metadata": metadata}
        if "spec" in body:
            made["spec"] = {
                name: value
                for name, value in body["spec"].items()
                if name not in self.objects.unknown
            }
        if kind == "pods":
            made["status"] = {"phase": "Running"}
        if not is_trial:
            self.objects.kept[kind, namespace, metadata["name"]] = made
        self._answer(201, made)

    def do_PATCH(self) -> None:
        """Server-side apply, of one manager: what it sends is what there is. Other patches change a spec."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = self._found()
        if found is None:
            return
        kind, namespace, name, _ = found
        if "apply-patch" not in self.headers["Content-Type"]:
            made = self.objects.kept[kind, namespace, name or ""]
            made["spec"] |= body["spec"]
            self._answer(200, made)
            return
        self.objects.asked.append(f"apply {kind} {name}")
        if kind in self.objects.refused:
            self._refuse(403, "Forbidden", self.objects.refused[kind])
            return
        try:
            check(body)
        except Exception as error:  # as above
            self._refuse(422, "Invalid", str(error).splitlines()[0])
            return
        self.objects.kept[kind, namespace, name or ""] = body
        self._answer(200, body)

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        found = self._found()
        if found is None:
            return
        kind, namespace, name, _ = found
        self.objects.deleted.append(f"{kind}/{name}")
        made = self.objects.kept.pop((kind, namespace, name or ""), None)
        self._answer(200, made or {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _discovery(self, path: str) -> dict[str, Any] | None:
        groups = [version for version in KINDS if "/" in version]
        groups = [
            version
            for version in groups
            if version.split("/")[0] not in self.objects.missing_groups
        ]
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        if path == "/apis":
            listed = [
                {
                    "name": version.split("/")[0],
                    "versions": [{"groupVersion": version, "version": version.split("/")[1]}],
                    "preferredVersion": {"groupVersion": version, "version": version.split("/")[1]},
                }
                for version in groups
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version not in ("v1", *groups):
            return None
        resources = [
            {
                "name": resource,
                "singularName": kind.lower(),
                "namespaced": kind not in CLUSTER_WIDE,
                "kind": kind,
                "verbs": ["create", "delete", "get", "list", "patch", "watch"],
            }
            for resource, kind in KINDS[version].items()
        ]
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": resources,
        }

    def _found(self) -> tuple[str, str, str | None, str | None] | None:
        path = urlsplit(self.path).path
        match = PATH.fullmatch(path)
        if match is None:
            self._refuse(404, "NotFound", "the server could not find the requested resource")
            return None
        kind = match["kind"]
        name = match["name"]
        namespace = match["namespace"] or ""
        return kind, namespace, name, match["sub"]

    def _query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query)

    def _items(self, kind: str, namespace: str) -> list[dict[str, Any]]:
        wanted = dict(
            part.split("=", 1)
            for part in self._query().get("labelSelector", [""])[0].split(",")
            if part
        )
        fields = self._query().get("fieldSelector", [""])[0]
        node = fields.removeprefix("spec.nodeName=")
        return [
            made
            for (resource, place, _), made in self.objects.kept.items()
            if resource == kind
            and namespace in ("", place)
            and node in ("", made.get("spec", {}).get("nodeName"))
            and wanted.items() <= made["metadata"].get("labels", {}).items()
        ]

    def _page(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Return as many items as the client asks for, and where it continues."""
        query = self._query()
        first = int(query.get("continue", ["0"])[0])
        limit = int(query.get("limit", ["0"])[0]) or len(items)
        after = first + limit
        metadata = {"continue": str(after)} if after < len(items) else {}
        return {"metadata": metadata, "items": items[first:after]}

    def _exec(self) -> None:
        """Run the command here, with the folder that stands for /fsx in its place."""
        command = self._query()["command"]
        shared = str(self.objects.shared)
        command = [re.sub(r"^/fsx(?=/)", shared, word) for word in command]
        key = self.headers["Sec-WebSocket-Key"] + WEBSOCKET_KEY
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header(
            "Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        )
        self.send_header(
            "Sec-WebSocket-Protocol", self.headers["Sec-WebSocket-Protocol"].split(",")[0]
        )
        self.end_headers()
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        for channel, text in ((STDOUT, done.stdout), (STDERR, done.stderr)):
            for start in range(0, len(text), 30_000):
                self._frame(bytes([channel]) + text[start : start + 30_000])
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if done.returncode:
            causes = [{"reason": "ExitCode", "message": str(done.returncode)}]
            status = {
                "metadata": {},
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "details": {"causes": causes},
            }
        self._frame(bytes([STATUS]) + json.dumps(status).encode())
        self._frame((1000).to_bytes(2, "big"), operation=0x8)
        self.close_connection = True

    def _frame(self, payload: bytes, *, operation: int = 0x2) -> None:
        """Whole and unmasked, as a server sends it (RFC 6455, 5.2)."""
        size = len(payload)
        length = bytes([size]) if size < 126 else bytes([126]) + size.to_bytes(2, "big")
        self.wfile.write(bytes([0x80 | operation]) + length + payload)

    def _refuse(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self._answer(code, status | {"message": message, "reason": reason, "code": code})

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        self._send(code, "application/json", json.dumps(content).encode())

    def _text(self, text: str) -> None:
        self._send(200, "text/plain", text.encode())

    def _send(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[Objects, Path]]:
    """The objects of a running server, and a kubeconfig that leads to it."""
    objects = Objects()
    handler = type("Handler", (_Handler,), {"objects": objects})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    path = folder / "kubeconfig"
    address = f"http://127.0.0.1:{server.server_port}"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
        "users": [{"name": "here", "user": {"token": "of-nobody"}}],
        "current-context": "here",
    }
    path.write_text(json.dumps(content))
    try:
        yield objects, path
    finally:
        server.shutdown()
        server.server_close()
