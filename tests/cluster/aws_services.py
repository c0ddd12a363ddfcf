"""The cluster's AWS: S3 and STS (moto's server), and the service that hands out instances' credentials.

Run in the cluster's network: ``python -m tests.cluster.aws_services FOLDER``. Each file
``FOLDER/<bucket>/<key>`` becomes an object. Prints a line when all of it answers.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from tests.cluster.island import GATEWAY, METADATA_ADDRESS, METADATA_ADDRESS_6

PORT = 5000
REGION = "us-west-2"
READY = "AWS answers"
TOKEN = "AQAEAstandintoken"
ROLE = "nodes"
CREDENTIALS = {
    "Code": "Success",
    "LastUpdated": "2026-01-01T00:00:00Z",
    "Type": "AWS-HMAC",
    "AccessKeyId": "ASIAEXAMPLEEXAMPLE00",
    "SecretAccessKey": "not-a-secret",
    "Token": "not-a-token",
    "Expiration": "2099-01-01T00:00:00Z",
}
MLFLOW = "arn:aws:sagemaker:us-west-2:123456789012:mlflow-tracking-server/esm2-test"
"""Services that are not served here."""
JOB_ROLE = "arn:aws:iam::123456789012:role/jobs"
_CREDENTIALS_PATH = "/latest/meta-data/iam/security-credentials/"
_ANSWERS = {
    _CREDENTIALS_PATH: ROLE,
    _CREDENTIALS_PATH + ROLE: json.dumps(CREDENTIALS),
    "/latest/meta-data/placement/region": REGION,
}


class InstanceMetadata(BaseHTTPRequestHandler):
    """Version 2 of the service: a token first, which every other request must carry."""

    def do_PUT(self) -> None:
        self._answer(200 if self.path == "/latest/api/token" else 404, TOKEN)

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            self._answer(401, "")
        else:
            self._answer(200 if self.path in _ANSWERS else 404, _ANSWERS.get(self.path, ""))

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "21600")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the tests know the caller."""


class MetadataServer(ThreadingHTTPServer):
    request_queue_size = 64  # all machines ask at once


class MetadataServer6(MetadataServer):
    address_family = socket.AF_INET6


def main(folder: Path) -> None:
    for server in (
        MetadataServer((METADATA_ADDRESS, 80), InstanceMetadata),
        MetadataServer6((METADATA_ADDRESS_6, 80), InstanceMetadata),
    ):
        # A process of its own answers at once, while this one answers requests to S3.
        multiprocessing.get_context("fork").Process(target=server.serve_forever).start()
    ThreadedMotoServer(ip_address=GATEWAY, port=PORT, verbose=False).start()
    # Stored directly, since a request for each of the hundreds of files takes milliseconds.
    s3 = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for bucket in folder.iterdir():
        s3.create_bucket(bucket.name, REGION)
        for file in sorted(bucket.rglob("*")):
            if file.is_file():
                s3.put_object(bucket.name, str(file.relative_to(bucket)), file.read_bytes())
    print(READY, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
