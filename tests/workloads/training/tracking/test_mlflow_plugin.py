"""Runs that are copied to SageMaker's MLflow by the plugin, with credentials that the node gives out."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from seqlm.training.config import TrackingConfig
from seqlm.training.tracking import mirror
from seqlm.training.tracking.run_log import RunLog

REPOSITORY = Path(__file__).parents[4]
PROGRAM = REPOSITORY / "lifecycle/slurm/collectors/job_credentials.py"
APP = "arn:aws:sagemaker:us-west-2:123456789012:mlflow-app/app-ABCDEFGHIJKL"
SERVER = "arn:aws:sagemaker:us-west-2:123456789012:mlflow-tracking-server/esm2"
ROLE = "arn:aws:iam::123456789012:role/jobs"
KEY = Credentials("ASIAJOBS", "secret-of-the-role", "token-of-the-role")
API = "/api/2.0/mlflow"


@dataclass
class Managed:
    """Part of MLflow's REST interface that a run needs; refuses requests without the role's signature."""

    arn: str
    url: str = ""
    metrics: list[tuple[str, float, int]] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    statuses: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def answer(self, request: BaseHTTPRequestHandler) -> tuple[int, dict[str, Any]]:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if refusal := self._refusal(request, body):
            self.refusals.append(refusal)
            return 403, {"error_code": "PERMISSION_DENIED", "message": refusal}
        path = urlsplit(request.path).path.removeprefix(API)
        given = json.loads(body) if body else parse_qs(urlsplit(request.path).query)
        self.asked.add(path)
        match path:
            case "/experiments/get-by-name":
                return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}
            case "/experiments/create":
                return 200, {"experiment_id": "1"}
            case "/runs/create":
                return 200, {
                    "run": {"info": {"run_id": "r1", "experiment_id": given["experiment_id"]}}
                }
            case "/runs/log-batch":
                self.metrics += [
                    (m["key"], m["value"], m.get("step", 0)) for m in given.get("metrics", [])
                ]
                self.params |= {p["key"]: p["value"] for p in given.get("params", [])}
                return 200, {}
            case "/runs/update":
                self.statuses.append(given["status"])
                return 200, {"run_info": {"run_id": "r1"}}
        return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": path}

    def _refusal(self, request: BaseHTTPRequestHandler, body: bytes) -> str:
        """Empty if the request names the app or server, and its signature is what botocore makes of it."""
        is_app = ":mlflow-app/" in self.arn
        header = "x-sm-mlflow-app-arn" if is_app else "x-mlflow-sm-tracking-server-arn"
        if request.headers.get(header) != self.arn:
            return f"{header} is {request.headers.get(header)}"
        told = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=ASIAJOBS/\d{8}/us-west-2/([a-z-]+)/aws4_request,"
            r" SignedHeaders=(\S+), Signature=([0-9a-f]{64})",
            request.headers.get("Authorization", ""),
        )
        if told is None:
            return f"Authorization is {request.headers.get('Authorization')}"
        service, names, signature = told.groups()
        if service != ("sagemaker" if is_app else "sagemaker-mlflow"):
            return f"signed for {service}"
        again = AWSRequest(method=request.command, url=f"{self.url}{request.path}", data=body)
        for name in names.split(";"):
            again.headers[name] = request.headers[name]
        again.context["timestamp"] = request.headers["X-Amz-Date"]
        signer = SigV4Auth(KEY, service, "us-west-2")
        text = signer.string_to_sign(again, signer.canonical_request(again))
        return "" if signer.signature(text, again) == signature else "the signature is another one"


@pytest.fixture
def managed(request: pytest.FixtureRequest) -> Iterator[Managed]:
    made = Managed(request.param)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, value = made.answer(self)
            text = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Print nothing, because the record has the requests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield made
        server.shutdown()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The service of a node, with an aws command that gives the role's key, and the variables of its jobs."""
    given = {
        "AccessKeyId": KEY.access_key,
        "SecretAccessKey": KEY.secret_key,
        "SessionToken": KEY.token,
        "Expiration": "2099-01-01T00:00:00+00:00",
    }
    command = tmp_path / "bin/aws"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\ncat <<'EOF'\n{json.dumps({'Credentials': given})}\nEOF\n")
    command.chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    service = subprocess.Popen(
        [
            sys.executable,
            PROGRAM,
            "--role-arn",
            ROLE,
            "--session-name",
            "ip-10-0-0-31",
            "--region",
            "us-west-2",
            "--port",
            str(port),
        ],
        env={"PATH": f"{command.parent}:/usr/bin:/bin"},
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{port}/credentials")
    deadline = time.monotonic() + 240
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert service.poll() is None and time.monotonic() < deadline, (
                "the service does not listen"
            )
            time.sleep(0.05)
    yield
    service.terminate()
    service.wait(timeout=240)


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror restores the settings of the process."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.get_tracking_uri())
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)


def _run(run_dir: Path, uri: str) -> None:
    config = {"name": "r", "train": {"max_steps": 2}}
    log = RunLog(
        run_dir, config=config, tracking=TrackingConfig(mlflow_uri=uri), max_steps=2, enabled=True
    )
    log.train(1, loss=3.0)
    log.train(2, loss=2.5)
    log.close("FINISHED")


@pytest.mark.parametrize("managed", [APP, SERVER], indirect=True, ids=["app", "tracking server"])
def test_a_run_is_copied_with_the_credentials_of_the_node(
    managed: Managed,
    node: None,
    tracked: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SAGEMAKER_MLFLOW_CUSTOM_ENDPOINT", managed.url)
    monkeypatch.setattr(mirror, "CLOSE_TIMEOUT_SECONDS", 60)
    _run(tmp_path / "r", managed.arn)
    assert managed.refusals == []
    assert managed.metrics == [("train/loss", 3.0, 1), ("train/loss", 2.5, 2)]
    assert managed.params == {"name": "r", "train.max_steps": "2"}
    assert managed.statuses == ["FINISHED"]
    assert (tmp_path / "r/mlflow_run_id").read_text() == "r1\n"
    said = capfd.readouterr()
    assert "secret-of-the-role" not in said.err + said.out


@pytest.mark.long
@pytest.mark.parametrize("managed", [APP], indirect=True)
def test_without_credentials_a_run_ends_well_and_says_so(
    managed: Managed,
    tracked: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SAGEMAKER_MLFLOW_CUSTOM_ENDPOINT", managed.url)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9/credentials")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setattr(mirror, "CLOSE_TIMEOUT_SECONDS", 60)
    _run(tmp_path / "r", managed.arn)
    said = capfd.readouterr().err
    assert said.count(f"MLflow at {APP} does not take this run") == 1
    assert "metrics.jsonl in" in said and "Traceback" not in said
    assert managed.metrics == []


def test_an_address_without_mlflow_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _run(tmp_path / "r", "arn:aws:sagemaker:us-west-2:123456789012:domain/d-1")
    assert "is no app or tracking server of SageMaker" in capfd.readouterr().err
