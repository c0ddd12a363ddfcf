"""The function that fills a Grafana workspace, against AWS's API shapes and a server with Grafana's API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from functions.grafana_contents import index
from tests.functions.conftest import stubbed
from tests.functions.grafana_api import TOKEN, Grafana, answering

WORKSPACE = "g-0123456789"
START = 1_000_000.0
ADA = "user/0a1b2c3d-0000-1111-2222-333344445555"
TEAM = "group/9067f2a1b2-0a1b2c3d-0000-1111-2222-333344445556"
SOURCES = [
    {
        "uid": "hyperpod-prometheus",
        "name": "Prometheus of esm2",
        "type": "prometheus",
        "isDefault": True,
    },
    {"uid": "hyperpod-cloudwatch", "name": "CloudWatch of esm2", "type": "cloudwatch"},
]
MODELS = {
    "hyperpod-training": {"title": "Training", "panels": []},
    "hyperpod-fsx": {"title": "File systems", "panels": [{"fs": "@LUSTRE_ID@"}]},
}


@pytest.fixture
def grafana() -> Grafana:
    return Grafana()


@pytest.fixture
def endpoint(grafana: Grafana) -> Iterator[str]:
    with answering(grafana) as url:
        yield url


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    with stubbed("grafana", monkeypatch) as stubber:
        yield stubber


@pytest.fixture(autouse=True)
def dashboards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "dashboards.json"
    path.write_text(json.dumps(MODELS))
    monkeypatch.setattr(index, "DASHBOARDS", path)
    monkeypatch.setattr(index.time, "time", lambda: START + 60)
    return path


def properties(endpoint: str, **changes: Any) -> dict[str, Any]:
    """Properties as CloudFormation passes them: strings, also for numbers."""
    return {
        "WorkspaceId": WORKSPACE,
        "Endpoint": endpoint,
        "Folder": json.dumps({"uid": "hyperpod", "title": "HyperPod esm2"}),
        "DataSources": json.dumps(SOURCES),
        "Marks": json.dumps({"@LUSTRE_ID@": "fs-0123"}),
        "People": {},
        "TimeoutSeconds": "900",
    } | changes


def event(
    endpoint: str, kind: str = "Create", *, old: Any = None, **changes: Any
) -> dict[str, Any]:
    return {
        "RequestType": kind,
        "ResourceProperties": properties(endpoint, **changes),
        "PhysicalResourceId": WORKSPACE,
        **({"OldResourceProperties": properties(endpoint, **old)} if old is not None else {}),
        "Data": {"Start": START},
    }


def a_call(aws: Stubber, *, new: bool = False, left: Sequence[str] = ()) -> None:
    """Stub the AWS requests of a call: the account, which it may create, and a token that it deletes again,
    as it deletes tokens of earlier calls.
    """
    named = {"workspaceId": WORKSPACE}
    of_account = {"serviceAccountId": "42", "workspaceId": WORKSPACE}
    role = {"name": index.SERVICE_ACCOUNT, "grafanaRole": "ADMIN"}
    found = [{"id": "7", "name": "someone's", "grafanaRole": "VIEWER", "isDisabled": "false"}]
    if not new:
        found.append({"id": "42", "isDisabled": "false", **role})
    aws.add_response("list_workspace_service_accounts", {"serviceAccounts": found, **named}, named)
    if new:
        aws.add_response(
            "create_workspace_service_account", {"id": "42", **role, **named}, {**role, **named}
        )
    tokens = [{"id": i, "name": "t", "createdAt": START, "expiresAt": START + 120} for i in left]
    aws.add_response(
        "list_workspace_service_account_tokens",
        {"serviceAccountTokens": tokens, **of_account},
        of_account,
    )
    for token in left:
        _a_token_goes(aws, token, of_account)
    aws.add_response(
        "create_workspace_service_account_token",
        {
            "serviceAccountToken": {"id": "1", "name": index.SERVICE_ACCOUNT, "key": TOKEN},
            **of_account,
        },
        {"name": index.SERVICE_ACCOUNT, "secondsToLive": index.TOKEN_SECONDS, **of_account},
    )
    _a_token_goes(aws, "1", of_account)


def _a_token_goes(aws: Stubber, token: str, of_account: dict[str, str]) -> None:
    named = {"tokenId": token, **of_account}
    aws.add_response("delete_workspace_service_account_token", named, named)


def a_role(
    aws: Stubber, action: str, role: str, name: str, *, errors: list[str] | None = None
) -> None:
    kind, principal = name.split("/")
    instruction = {
        "action": action,
        "role": role,
        "users": [{"id": principal, "type": {"user": "SSO_USER", "group": "SSO_GROUP"}[kind]}],
    }
    aws.add_response(
        "update_permissions",
        {
            "errors": [
                {"code": 404, "message": said, "causedBy": instruction} for said in errors or []
            ]
        },
        {"updateInstructionBatch": [instruction], "workspaceId": WORKSPACE},
    )


def complete(event: dict[str, Any]) -> bool:
    return index.is_complete(event, None)["IsComplete"]


def test_a_new_workspace_gets_sources_folder_and_dashboards(
    aws: Stubber, grafana: Grafana, endpoint: str
) -> None:
    begun = index.on_event(
        {"RequestType": "Create", "ResourceProperties": properties(endpoint)}, None
    )
    assert begun["PhysicalResourceId"] == WORKSPACE
    a_call(aws, new=True)
    assert complete(event(endpoint))
    assert list(grafana.sources.values()) == SOURCES
    assert grafana.folders["hyperpod"]["title"] == "HyperPod esm2"
    assert set(grafana.dashboards) == set(MODELS)
    kept = grafana.dashboards["hyperpod-fsx"]
    assert kept["folderUid"] == "hyperpod"
    # The mark has become the file system's id.
    assert kept["dashboard"]["panels"] == [{"fs": "fs-0123"}]


def test_a_repeated_call_changes_the_existing_objects(
    aws: Stubber, grafana: Grafana, endpoint: str
) -> None:
    for _ in range(2):
        a_call(aws)
        assert complete(event(endpoint))
    assert list(grafana.sources.values()) == SOURCES
    assert grafana.asked.count("POST /api/datasources") == 2
    assert grafana.asked.count("POST /api/folders") == 1
    assert set(grafana.dashboards) == set(MODELS)


def test_an_update_removes_dashboards_that_are_no_more_and_leaves_people_s(
    aws: Stubber, grafana: Grafana, endpoint: str, dashboards: Path
) -> None:
    a_call(aws)
    assert complete(event(endpoint))
    grafana.dashboards["adb3kq"] = {"folderUid": "hyperpod", "dashboard": {"title": "Ada's"}}
    grafana.dashboards["hyperpod-elsewhere"] = {
        "folderUid": "general",
        "dashboard": {"title": "Ours?"},
    }
    dashboards.write_text(json.dumps({"hyperpod-training": MODELS["hyperpod-training"]}))
    a_call(aws)
    assert complete(event(endpoint, "Update", old={}))
    assert set(grafana.dashboards) == {"hyperpod-training", "adb3kq", "hyperpod-elsewhere"}


@pytest.mark.parametrize("status", [401, 503])
def test_retries_a_workspace_that_is_not_ready(
    aws: Stubber, grafana: Grafana, endpoint: str, status: int
) -> None:
    grafana.broken["/api/datasources"] = (status, "not yet")
    a_call(aws)
    assert not complete(event(endpoint))
    grafana.broken.clear()
    a_call(aws)
    assert complete(event(endpoint))
    assert set(grafana.dashboards) == set(MODELS)


def test_retries_an_address_without_an_answer_until_the_deadline(
    aws: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = "http://127.0.0.1:1"
    a_call(aws)
    assert not complete(event(nobody))
    monkeypatch.setattr(index.time, "time", lambda: START + 900)
    a_call(aws)
    with pytest.raises(
        index.GrafanaError, match=r"GET /api/datasources/uid/hyperpod-prometheus: .*refused"
    ):
        complete(event(nobody))


def test_what_grafana_refuses_ends_the_deployment_with_its_words_and_without_the_token(
    aws: Stubber, grafana: Grafana, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.broken["/api/dashboards/db"] = (400, "Dashboard title cannot be empty")
    a_call(aws)
    with pytest.raises(index.GrafanaError, match="title cannot be empty") as refused:
        complete(event(endpoint))
    assert TOKEN not in str(refused.value) + capsys.readouterr().out


def test_what_a_call_that_was_cut_off_left_is_deleted_first(
    aws: Stubber, grafana: Grafana, endpoint: str
) -> None:
    a_call(aws, left=["40", "41"])
    assert complete(event(endpoint))


def test_people_get_their_roles_and_lose_those_that_the_file_has_no_more(
    aws: Stubber, grafana: Grafana, endpoint: str
) -> None:
    a_call(aws)
    a_role(aws, "REVOKE", "EDITOR", ADA)
    a_role(aws, "ADD", "ADMIN", TEAM)
    a_role(aws, "ADD", "VIEWER", ADA)
    former = {"People": {"ADMIN": [TEAM], "EDITOR": [ADA], "VIEWER": []}}
    now = {"ADMIN": [TEAM], "EDITOR": [], "VIEWER": [ADA]}
    assert complete(event(endpoint, "Update", old=former, People=now))


def test_someone_whom_identity_center_does_not_know_is_named(
    aws: Stubber, grafana: Grafana, endpoint: str
) -> None:
    a_call(aws)
    a_role(aws, "ADD", "ADMIN", ADA, errors=["User not found"])
    with pytest.raises(RuntimeError, match=f"{ADA} cannot have role ADMIN: User not found"):
        complete(event(endpoint, People={"ADMIN": [ADA]}))


def there(aws: Stubber, status: str = "ACTIVE") -> None:
    workspace = {
        "authentication": {"providers": ["SAML"]},
        "created": START,
        "dataSources": ["PROMETHEUS"],
        "endpoint": "g.example.com",
        "grafanaVersion": "10.4",
        "id": WORKSPACE,
        "modified": START,
        "status": status,
    }
    aws.add_response("describe_workspace", {"workspace": workspace}, {"workspaceId": WORKSPACE})


def test_deleted_it_leaves_nothing_of_its_own(
    aws: Stubber, grafana: Grafana, endpoint: str
) -> None:
    a_call(aws)
    assert complete(event(endpoint))
    grafana.sources["people-s"] = {"uid": "people-s"}
    there(aws)
    a_call(aws)
    a_role(aws, "REVOKE", "ADMIN", TEAM)
    assert complete(event(endpoint, "Delete", People={"ADMIN": [TEAM]}))
    assert (grafana.folders, grafana.dashboards, set(grafana.sources)) == ({}, {}, {"people-s"})
    there(aws)
    a_call(aws)
    assert complete(event(endpoint, "Delete"))


@pytest.mark.parametrize("code", ["ConflictException", "ThrottlingException"])
def test_retries_when_aws_is_busy(
    aws: Stubber, endpoint: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.add_client_error("list_workspace_service_accounts", code)
    assert not complete(event(endpoint))
    a_call(aws)
    aws.add_client_error("update_permissions", code)
    assert not complete(event(endpoint, People={"ADMIN": [ADA]}))
    monkeypatch.setattr(index.time, "time", lambda: START + 900)
    aws.add_client_error("list_workspace_service_accounts", code)
    with pytest.raises(ClientError, match=code):
        complete(event(endpoint))


def test_what_aws_refuses_ends_a_deployment_and_no_deletion(aws: Stubber, endpoint: str) -> None:
    aws.add_client_error("list_workspace_service_accounts", "AccessDeniedException")
    with pytest.raises(ClientError, match="AccessDenied"):
        complete(event(endpoint))
    there(aws)
    aws.add_client_error("list_workspace_service_accounts", "AccessDeniedException")
    assert complete(event(endpoint, "Delete"))


@pytest.mark.parametrize("status", ["DELETING", "CREATION_FAILED"])
def test_a_deletion_does_not_wait_for_a_workspace_that_is_gone(
    aws: Stubber, endpoint: str, status: str
) -> None:
    aws.add_client_error("describe_workspace", "ResourceNotFoundException")
    assert complete(event(endpoint, "Delete"))
    there(aws, status)
    assert complete(event(endpoint, "Delete"))


def test_a_deletion_ends_although_grafana_never_answers(
    aws: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workspace goes next, and everything in it."""
    nobody = "http://127.0.0.1:1"
    there(aws)
    a_call(aws)
    assert not complete(event(nobody, "Delete"))
    monkeypatch.setattr(index.time, "time", lambda: START + 901)
    there(aws)
    a_call(aws)
    assert complete(event(nobody, "Delete"))


def test_another_workspace_is_another_resource(endpoint: str) -> None:
    """CloudFormation then deletes the former one by its own id."""
    begun = index.on_event(event(endpoint, "Update", old={}, WorkspaceId="g-9999999999"), None)
    assert begun["PhysicalResourceId"] == "g-9999999999"
    ended = index.on_event(event(endpoint, "Delete", WorkspaceId="g-9999999999"), None)
    assert ended["PhysicalResourceId"] == WORKSPACE
