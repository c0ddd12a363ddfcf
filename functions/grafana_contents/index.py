"""Puts data sources, dashboards and people's roles into an Amazon Managed Grafana workspace.

CloudFormation calls ``on_event`` once and ``is_complete`` until it says yes. Each call of the latter does the
whole work, which may be done again: a workspace that is new, or an address that is not known everywhere yet,
is met again 20 seconds later. Requests use Grafana's HTTP API, as a service account whose token ends with
the call, and after two minutes at the latest; it stands in no log. The account stays, without a token: each
one that asked something in a month bills as a user of that month (user guide, "Service accounts").
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import ClientError

DASHBOARDS = Path(__file__).with_name("dashboards.json")
"""Dashboards by uid, as Grafana's own models, with marks for file systems."""
SERVICE_ACCOUNT = "hyperpod-contents"
TOKEN_SECONDS = 120
"""More than a call may take."""
LATER = {401, 403, 408, 429, 500, 502, 503, 504}
"""A workspace, or an account in it, that is not quite there yet answers so."""
BUSY = {"ConflictException", "InternalServerException", "ThrottlingException"}
"""AWS itself, of a workspace that is changing, or of too many calls."""
EMPTY = {"CREATION_FAILED", "DELETING", "FAILED"}
"""States of workspaces in which there is no Grafana to be tidied up."""

Event = dict[str, Any]


class GrafanaError(Exception):
    """Grafana refuses, or does not answer; ``may_pass`` where that is worth another try."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.may_pass = status is None or status in LATER


def on_event(event: Event, _context: object) -> Event:
    """The resource is the workspace; another workspace is another resource, whose former one is deleted."""
    workspace = (
        event["PhysicalResourceId"]
        if event["RequestType"] == "Delete"
        else event["ResourceProperties"]["WorkspaceId"]
    )
    return {"PhysicalResourceId": workspace, "Data": {"Start": time.time()}}


def is_complete(event: Event, _context: object) -> dict[str, bool]:
    """Whether all is in its place, or gone.

    Raises:
        GrafanaError: if Grafana refuses what it is given, or has not answered for ``TimeoutSeconds``. What
            cannot be deleted is left alone then: it goes with its workspace.
        ClientError: if AWS refuses, or was busy for as long.
        RuntimeError: if Identity Center knows someone not that a role is for.
    """
    properties, gone = event["ResourceProperties"], event["RequestType"] == "Delete"
    workspace = _Workspace(event["PhysicalResourceId"])
    if gone and not workspace.is_there():
        return {"IsComplete": True}
    former = event.get("OldResourceProperties", {}) if event["RequestType"] == "Update" else {}
    try:
        with workspace.grafana(properties["Endpoint"]) as grafana:
            _remove(grafana, properties) if gone else _put(grafana, properties)
        workspace.give_roles(set() if gone else _people(properties), _people(properties if gone else former))
    except (GrafanaError, ClientError) as error:
        late = time.time() - float(event["Data"]["Start"]) >= float(properties["TimeoutSeconds"])
        print(f"{workspace.id}: {error}")
        if _may_pass(error) and not late:
            return {"IsComplete": False}
        if not gone:
            raise
    return {"IsComplete": True}


def _may_pass(error: GrafanaError | ClientError) -> bool:
    if isinstance(error, GrafanaError):
        return error.may_pass
    return error.response["Error"]["Code"] in BUSY


def _people(properties: Event) -> set[tuple[str, str]]:
    """Role, and user or group, of each."""
    return {(role, name) for role, names in properties.get("People", {}).items() for name in names}


def _put(grafana: _Grafana, properties: Event) -> None:
    folder = json.loads(properties["Folder"])
    for source in json.loads(properties["DataSources"]):
        grafana.put("/api/datasources", f"/api/datasources/uid/{source['uid']}", source)
    grafana.put("/api/folders", f"/api/folders/{folder['uid']}", folder, overwrite=True)
    ours = _dashboards(json.loads(properties["Marks"]))
    for dashboard in ours.values():
        body = {"dashboard": dashboard, "folderUid": folder["uid"], "overwrite": True}
        grafana.send("POST", "/api/dashboards/db", body)
    # What an earlier version had. People's own have uids that Grafana makes up, without this beginning.
    for found in grafana.get(f"/api/search?type=dash-db&limit=5000&folderUIDs={folder['uid']}") or []:
        if found["uid"].startswith(f"{folder['uid']}-") and found["uid"] not in ours:
            grafana.send("DELETE", f"/api/dashboards/uid/{found['uid']}")


def _remove(grafana: _Grafana, properties: Event) -> None:
    """Remove the dashboards and their folder, including what users have put into it."""
    places = [f"/api/folders/{json.loads(properties['Folder'])['uid']}"]
    places += [f"/api/datasources/uid/{source['uid']}" for source in json.loads(properties["DataSources"])]
    for place in places:
        if grafana.get(place) is not None:
            grafana.send("DELETE", place)


def _dashboards(marks: dict[str, str]) -> dict[str, Event]:
    text = DASHBOARDS.read_text()
    for mark, value in marks.items():
        text = text.replace(mark, value)
    models: dict[str, Event] = json.loads(text)
    # Grafana's own number, which it gives: null makes a new one, or finds the one of that uid.
    return {uid: {**model, "uid": uid, "id": None} for uid, model in models.items()}


class _Workspace:
    """A workspace, as AWS's API has it."""

    def __init__(self, workspace_id: str) -> None:
        self.id = workspace_id
        self._client = boto3.client("grafana")
        self._named = {"workspaceId": workspace_id}

    def is_there(self) -> bool:
        try:
            found = self._client.describe_workspace(**self._named)
        except self._client.exceptions.ResourceNotFoundException:
            return False
        return found["workspace"]["status"] not in EMPTY

    @contextmanager
    def grafana(self, endpoint: str) -> Iterator[_Grafana]:
        """Grafana, for as long as the block lasts; no token is left."""
        account = {"serviceAccountId": self._account(), **self._named}
        pages = self._client.get_paginator("list_workspace_service_account_tokens").paginate(**account)
        # Of calls that were cut off: there is a quota, also of those that have ended.
        for left in [token for page in pages for token in page["serviceAccountTokens"]]:
            self._client.delete_workspace_service_account_token(tokenId=left["id"], **account)
        token = self._client.create_workspace_service_account_token(
            name=SERVICE_ACCOUNT, secondsToLive=TOKEN_SECONDS, **account
        )["serviceAccountToken"]
        try:
            yield _Grafana(endpoint, token["key"])
        finally:
            self._client.delete_workspace_service_account_token(tokenId=token["id"], **account)

    def _account(self) -> str:
        """The service account's id."""
        pages = self._client.get_paginator("list_workspace_service_accounts").paginate(**self._named)
        for found in [account for page in pages for account in page["serviceAccounts"]]:
            if found["name"] == SERVICE_ACCOUNT:
                return str(found["id"])
        made = self._client.create_workspace_service_account(
            name=SERVICE_ACCOUNT, grafanaRole="ADMIN", **self._named
        )
        return str(made["id"])

    def give_roles(self, wanted: set[tuple[str, str]], former: set[tuple[str, str]]) -> None:
        """Roles that this resource gave and gives no more are taken back; those of others stay."""
        for action, people in (("REVOKE", former - wanted), ("ADD", wanted)):
            for role, name in sorted(people):
                kind, _, principal = name.partition("/")
                answer = self._client.update_permissions(
                    updateInstructionBatch=[
                        {
                            "action": action,
                            "role": role,
                            "users": [{"id": principal, "type": f"SSO_{kind.upper()}"}],
                        }
                    ],
                    **self._named,
                )
                # Someone who is gone from Identity Center has no role that could be taken back.
                if answer["errors"] and action == "ADD":
                    said = "; ".join(error["message"] for error in answer["errors"])
                    raise RuntimeError(f"observability.grafana: {name} gets no role {role}: {said}")


class _Grafana:
    """Grafana's HTTP API."""

    def __init__(self, endpoint: str, token: str) -> None:
        # The service's endpoints are names of hosts; a test's is a whole address.
        self._url = endpoint if "://" in endpoint else f"https://{endpoint}"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def get(self, path: str) -> Any:
        """None if there is no such thing."""
        try:
            return self.send("GET", path)
        except GrafanaError as error:
            if error.status == 404:
                return None
            raise

    def put(self, kind: str, place: str, body: Event, **if_there: Any) -> None:
        """Create what is not in its place; else change it."""
        if self.get(place) is None:
            self.send("POST", kind, body)
        else:
            self.send("PUT", place, {**body, **if_there})

    def send(self, method: str, path: str, body: Event | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            method=method,
            headers=self._headers,
            data=None if body is None else json.dumps(body).encode(),
        )
        try:
            with urllib.request.urlopen(request, timeout=15) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read(300).decode(errors="replace")
            raise GrafanaError(f"{method} {path}: {error.code} {said}", status=error.code) from None
        except (OSError, ValueError) as error:
            # No such host yet, a connection that was lost, or a page instead of an answer.
            raise GrafanaError(f"{method} {path}: {error}") from None
