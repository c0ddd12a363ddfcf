"""Serve short-lived credentials of one role to jobs, at the address where AWS's SDKs look in containers.

Only root reaches the node's own credentials, which allow far more. The service assumes the role with them. It
listens on the loopback interface, which containers of pyxis share, so every job on the node has the role.
"""

import argparse
import json
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATH = "/credentials"
SESSION = timedelta(hours=1)
"""Limit of STS for a caller that has assumed a role itself."""
RENEWED = timedelta(minutes=30)
"""Time before expiry at which they are renewed. SDKs request new ones when 15 minutes are left."""
SECONDS_FOR_STS = 30


class Credentials:
    """Credentials of the role, renewed before they expire."""

    def __init__(self, role_arn: str, session_name: str, region: str) -> None:
        self._command = [
            "aws",
            "sts",
            "assume-role",
            "--role-arn",
            role_arn,
            "--role-session-name",
            session_name,
            "--duration-seconds",
            str(round(SESSION.total_seconds())),
            "--region",
            region,
            "--output",
            "json",
        ]
        self._lock = threading.Lock()
        self._held: dict[str, str] | None = None

    def current(self) -> dict[str, str]:
        """Return the credentials in the form that SDKs read.

        Raises:
            OSError: if the aws command is missing.
            subprocess.SubprocessError: if it fails, with its output, or does not end.
        """
        with self._lock:
            if self._held is None or _ends(self._held) - datetime.now(timezone.utc) < RENEWED:
                self._held = self._assume_role()
            return self._held

    def _assume_role(self) -> dict[str, str]:
        done = subprocess.run(
            self._command, capture_output=True, text=True, check=True, timeout=SECONDS_FOR_STS
        )
        given = json.loads(done.stdout)["Credentials"]
        return {
            "AccessKeyId": given["AccessKeyId"],
            "SecretAccessKey": given["SecretAccessKey"],
            "Token": given["SessionToken"],
            "Expiration": given["Expiration"],
        }


def handler(credentials: Credentials) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != PATH:
                self._answer(404, {"message": f"{self.path}: only {PATH} is here"})
                return
            try:
                self._answer(200, credentials.current())
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", None) or str(error)
                print(f"no credentials: {said.strip()}", file=sys.stderr, flush=True)
                self._answer(503, {"message": said.strip()})

        def _answer(self, status: int, value: dict[str, str]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log no requests; ``do_GET`` reports failures."""

    return Handler


def _ends(held: dict[str, str]) -> datetime:
    # Python 3.10 does not read the Z that STS may write.
    return datetime.fromisoformat(held["Expiration"].replace("Z", "+00:00"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role-arn", required=True)
    parser.add_argument("--session-name", required=True, help="name of this node in CloudTrail")
    parser.add_argument("--region", required=True, help="region of STS")
    parser.add_argument("--port", type=int, required=True, help="port on 127.0.0.1")
    options = parser.parse_args()
    credentials = Credentials(options.role_arn, options.session_name, options.region)
    with ThreadingHTTPServer(("127.0.0.1", options.port), handler(credentials)) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
