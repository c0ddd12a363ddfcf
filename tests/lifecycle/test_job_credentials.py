"""Jobs get credentials of their own role, which are renewed, and the address of the cluster's MLflow."""

from __future__ import annotations

import configparser
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from collectors import job_credentials
from node_setup.node import Node
from node_setup.settings import Mlflow
from node_setup.steps import managed_mlflow
from tests.lifecycle.https_server import body, served
from tests.lifecycle.node import SCRIPTS, StandIns, node_of
from tests.lifecycle.services import Services, services

__all__ = ["services"]
ROLE = "arn:aws:iam::123456789012:role/jobs"
MLFLOW = Mlflow(
    tracking_uri="arn:aws:sagemaker:us-west-2:123456789012:mlflow-app/app-1", role_arn=ROLE
)
GIVEN = {
    "AccessKeyId": "ASIA",
    "SecretAccessKey": "secret",
    "Token": "t",
    "Expiration": "2099-01-01T00:00:00Z",
}


def sts_gives(stand_ins: StandIns, left: timedelta) -> None:
    ends = (datetime.now(UTC) + left).isoformat(timespec="seconds")
    given = {"AccessKeyId": "ASIA", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": ends}
    stand_ins.command("aws", f"cat <<'EOF'\n{json.dumps({'Credentials': given})}\nEOF")


def credentials() -> job_credentials.Credentials:
    return job_credentials.Credentials(ROLE, "ip-10-0-0-31", "us-west-2")


def test_the_role_is_taken_on_for_an_hour_and_kept(stand_ins: StandIns) -> None:
    sts_gives(stand_ins, timedelta(hours=1))
    held = credentials()
    assert held.current() == held.current()
    assert set(held.current()) == {"AccessKeyId", "SecretAccessKey", "Token", "Expiration"}
    assert stand_ins.calls == [
        f"aws sts assume-role --role-arn {ROLE} --role-session-name ip-10-0-0-31"
        " --duration-seconds 3600 --region us-west-2 --output json"
    ]


def test_it_is_taken_on_again_before_it_ends(stand_ins: StandIns) -> None:
    """SDKs ask again when 15 minutes are left, and must get others then."""
    held = credentials()
    sts_gives(stand_ins, timedelta(minutes=29))
    held.current()
    sts_gives(stand_ins, timedelta(minutes=59))
    new = held.current()
    assert len(stand_ins.calls) == 2 and held.current() is new


def test_reports_a_refusal_of_sts_and_returns_no_credentials(
    stand_ins: StandIns, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_ins.command("aws", "echo 'AccessDenied: not yours' >&2; exit 254")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        credentials().current()
    assert "not yours" in caught.value.stderr


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Answers of the service on the node; the last item of the list counts."""
    answers = [json.dumps(GIVEN).encode()]

    def answer(request: BaseHTTPRequestHandler) -> None:
        assert request.path == "/credentials"
        if answers[-1]:
            body(answers[-1])(request)
        else:
            request.send_error(503)

    with served(answer) as url:
        monkeypatch.setattr(managed_mlflow, "PORT", int(url.rsplit(":", 1)[1]))
        yield answers


@pytest.fixture
def node(tmp_path: Path, services: Services) -> Node:
    made = node_of(tmp_path, "workers")
    made.deployment = replace(made.deployment, mlflow=MLFLOW)
    return made


def test_jobs_get_the_address_of_mlflow(
    node: Node, services: Services, service: list[bytes]
) -> None:
    managed_mlflow.apply(node)
    port = managed_mlflow.PORT
    assert json.loads(node.host.path(managed_mlflow.ENVIRONMENT).read_text()) == {
        "MLFLOW_TRACKING_URI": MLFLOW.tracking_uri,
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{port}/credentials",
    }
    assert node.host.path(managed_mlflow.ENVIRONMENT).stat().st_mode & 0o777 == 0o644
    unit = node.host.path(f"/etc/systemd/system/{managed_mlflow.UNIT}").read_text()
    assert (
        f"--role-arn {ROLE} --session-name ip-10-0-0-31 --region us-west-2 --port {port}\n" in unit
    )
    assert "@" not in unit
    assert services.restarts == [managed_mlflow.UNIT] and node.warnings == []
    node.changes = []
    managed_mlflow.apply(node)
    assert node.changes == [] and services.restarts == [managed_mlflow.UNIT]


def test_without_credentials_the_node_is_set_up_with_a_warning(
    node: Node, service: list[bytes]
) -> None:
    service.append(b"")
    managed_mlflow.apply(node)
    (warning,) = node.warnings
    assert "runs are not copied to MLflow" in warning and "answers 503" in warning
    assert "journalctl --unit job-credentials.service" in warning


def test_switched_off_both_are_taken_back(
    node: Node, services: Services, service: list[bytes], stand_ins: StandIns
) -> None:
    managed_mlflow.apply(node)
    node.deployment = replace(node.deployment, mlflow=None)
    node.changes = []
    managed_mlflow.apply(node)
    assert node.changes == [
        "job-credentials.service: removed",
        f"{managed_mlflow.ENVIRONMENT}: removed",
    ]
    assert not node.host.path(managed_mlflow.ENVIRONMENT).exists()
    assert "systemctl disable --now --quiet job-credentials.service" in stand_ins.calls
    node.changes = []
    managed_mlflow.apply(node)
    assert node.changes == []


def test_the_service_is_root_without_roots_powers() -> None:
    """The service runs as root, because the metadata service answers no other user."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(SCRIPTS / "units" / managed_mlflow.UNIT)
    service = parser["Service"]
    assert "User" not in service and service["CapabilityBoundingSet"] == ""
    assert service["NoNewPrivileges"] == "yes" and service["ProtectSystem"] == "strict"
    assert service["Restart"] == "always" and service["MemoryMax"]
