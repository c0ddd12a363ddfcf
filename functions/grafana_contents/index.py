"""Create data sources, dashboards and roles of people in an Amazon Managed Grafana workspace.

CloudFormation calls ``on_event`` once, and ``is_complete`` until it returns true. Each call of
``is_complete`` does all of the work, which can be repeated. If the workspace is not ready yet, or its address
cannot be resolved yet, the next call follows 20 seconds later.

The function calls Grafana's HTTP API with a token of a service account. The token is deleted at the end of
the call and expires after two minutes, and no log contains it. The account itself stays. In a month in which
it makes requests, it bills as one user (user guide, "Service accounts").
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3
from botocore.exceptions import ClientError

DASHBOARDS = Path(__file__).with_name("dashboards.json")
"""File with dashboards by uid, as Grafana's own models, with placeholders for the ids of file systems."""
SERVICE_ACCOUNT = "hyperpod-contents"
TOKEN_SECONDS = 120
"""Lifetime of a token, which is longer than the time limit of a call."""
HTTP_SECONDS = 15
"""Time limit of a request to Grafana."""
REASON_BYTES = 300
"""Part of an error's page that is quoted."""
NOT_FOUND = 404
TEMPORARY = {401, 403, 408, 429, 500, 502, 503, 504}
"""Status codes of a workspace, or an account in it, that is not ready yet."""
TEMPORARY_AWS = {"ConflictException", "InternalServerException", "ThrottlingException"}
"""Error codes of AWS for a workspace that is changing, and for too many calls."""
WITHOUT_GRAFANA = {"CREATION_FAILED", "DELETING", "FAILED"}
"""States of workspaces without a Grafana from which contents could be removed."""

Event = dict[str, Any]


class RoleOf(NamedTuple):
    """Role of a person or a group."""

    role: str
    name: str
    """Kind and id: ``user/<id>`` or ``group/<id>``."""


class GrafanaError(Exception):
    """Refusal by Grafana, or no answer; ``may_pass`` is true if another attempt may succeed."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.may_pass = status is None or status in TEMPORARY


def on_event(event: Event, _context: object) -> Event:
    """Return the workspace id as physical id, and the time of the start.

    With this physical id, CloudFormation replaces the resource, and deletes the former one, if the workspace
    changes.
    """
    if event["RequestType"] == "Delete":
        workspace = event["PhysicalResourceId"]
    else:
        workspace = event["ResourceProperties"]["WorkspaceId"]
    return {"PhysicalResourceId": workspace, "Data": {"Start": time.time()}}


def is_complete(event: Event, _context: object) -> dict[str, bool]:
    """Create or delete the contents, and return whether that is complete.

    Raises:
        GrafanaError: if Grafana refuses a request, or has not answered for ``TimeoutSeconds``. A deletion
            ignores this, because the contents are deleted with their workspace.
        ClientError: if AWS refuses a request, or was busy for ``TimeoutSeconds``. A deletion ignores this.
        RuntimeError: if Identity Center does not know a person or group of a role.
    """
    properties = event["ResourceProperties"]
    workspace = _Workspace(event["PhysicalResourceId"])
    is_deletion = event["RequestType"] == "Delete"
    if is_deletion and not workspace.has_grafana():
        return {"IsComplete": True}
    try:
        if is_deletion:
            with workspace.grafana(properties["Endpoint"]) as grafana:
                _remove(grafana, properties)
            workspace.set_roles(wanted=set(), former=_people(properties))
        else:
            with workspace.grafana(properties["Endpoint"]) as grafana:
                _put(grafana, properties)
            # Only updates have former properties.
            former = _people(event.get("OldResourceProperties", {}))
            workspace.set_roles(wanted=_people(properties), former=former)
    except (GrafanaError, ClientError) as error:
        print(f"{workspace.id}: {error}")
        elapsed = time.time() - float(event["Data"]["Start"])
        if _may_pass(error) and elapsed < float(properties["TimeoutSeconds"]):
            return {"IsComplete": False}
        if not is_deletion:
            raise
    return {"IsComplete": True}


def _may_pass(error: GrafanaError | ClientError) -> bool:
    if isinstance(error, GrafanaError):
        return error.may_pass
    return error.response["Error"]["Code"] in TEMPORARY_AWS


def _people(properties: Event) -> set[RoleOf]:
    """Return the roles of people and groups."""
    return {
        RoleOf(role, name) for role, names in properties.get("People", {}).items() for name in names
    }


def _put(grafana: _Grafana, properties: Event) -> None:
    """Create or change data sources, folder and dashboards, and delete dashboards of earlier versions."""
    folder = json.loads(properties["Folder"])
    for source in json.loads(properties["DataSources"]):
        grafana.put("/api/datasources", f"/api/datasources/uid/{source['uid']}", source)
    grafana.put("/api/folders", f"/api/folders/{folder['uid']}", folder, overwrite=True)
    ours = _dashboards(json.loads(properties["Marks"]))
    for dashboard in ours.values():
        body = {"dashboard": dashboard, "folderUid": folder["uid"], "overwrite": True}
        grafana.send("POST", "/api/dashboards/db", body)
    # Dashboards of people have uids that Grafana chooses, which do not begin with the folder's uid.
    for found in (
        grafana.get(f"/api/search?type=dash-db&limit=5000&folderUIDs={folder['uid']}") or []
    ):
        if found["uid"].startswith(f"{folder['uid']}-") and found["uid"] not in ours:
            grafana.send("DELETE", f"/api/dashboards/uid/{found['uid']}")


def _remove(grafana: _Grafana, properties: Event) -> None:
    """Remove the dashboards and their folder, including what users have put into it."""
    places = [f"/api/folders/{json.loads(properties['Folder'])['uid']}"]
    places += [
        f"/api/datasources/uid/{source['uid']}" for source in json.loads(properties["DataSources"])
    ]
    for place in places:
        if grafana.get(place) is not None:
            grafana.send("DELETE", place)


def _dashboards(marks: dict[str, str]) -> dict[str, Event]:
    """Return the dashboards by uid, with the ids of the file systems in place of the marks."""
    text = DASHBOARDS.read_text()
    for mark, value in marks.items():
        text = text.replace(mark, value)
    models: dict[str, Event] = json.loads(text)
    # The id is a number that Grafana assigns. Null creates a dashboard, or finds the one with the uid.
    return {uid: {**model, "uid": uid, "id": None} for uid, model in models.items()}


class _Workspace:
    """Workspace, through AWS's API."""

    def __init__(self, workspace_id: str) -> None:
        self.id = workspace_id
        self._client = boto3.client("grafana")
        self._named = {"workspaceId": workspace_id}

    def has_grafana(self) -> bool:
        """Return whether the workspace exists and has a Grafana."""
        try:
            found = self._client.describe_workspace(**self._named)
        except self._client.exceptions.ResourceNotFoundException:
            return False
        return found["workspace"]["status"] not in WITHOUT_GRAFANA

    @contextmanager
    def grafana(self, endpoint: str) -> Iterator[_Grafana]:
        """Return Grafana's API with a token that is deleted at the end of the block."""
        account = {"serviceAccountId": self._account(), **self._named}
        pages = self._client.get_paginator("list_workspace_service_account_tokens").paginate(
            **account
        )
        # Interrupted calls leave tokens behind, which count towards the quota even after they expire.
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
        """Return the id of the service account, which is created if it does not exist."""
        pages = self._client.get_paginator("list_workspace_service_accounts").paginate(
            **self._named
        )
        for found in [account for page in pages for account in page["serviceAccounts"]]:
            if found["name"] == SERVICE_ACCOUNT:
                return str(found["id"])
        created = self._client.create_workspace_service_account(
            name=SERVICE_ACCOUNT, grafanaRole="ADMIN", **self._named
        )
        return str(created["id"])

    def set_roles(self, *, wanted: set[RoleOf], former: set[RoleOf]) -> None:
        """Add roles, and revoke those that this resource added earlier and that are no longer wanted."""
        for given in sorted(former - wanted):
            # Errors are ignored: a person who was removed from Identity Center has no role to revoke.
            self._update_role("REVOKE", given)
        for given in sorted(wanted):
            errors = self._update_role("ADD", given)
            if errors:
                reasons = "; ".join(error["message"] for error in errors)
                raise RuntimeError(
                    f"observability.grafana: {given.name} cannot have role {given.role}: {reasons}"
                )

    def _update_role(self, action: str, given: RoleOf) -> list[Event]:
        """Add or revoke a role, and return the errors."""
        kind, _, principal = given.name.partition("/")
        instruction = {
            "action": action,
            "role": given.role,
            "users": [{"id": principal, "type": f"SSO_{kind.upper()}"}],
        }
        answer = self._client.update_permissions(
            updateInstructionBatch=[instruction], **self._named
        )
        errors: list[Event] = answer["errors"]
        return errors


class _Grafana:
    """Grafana's HTTP API."""

    def __init__(self, endpoint: str, token: str) -> None:
        # The service's endpoints are host names; tests give a URL.
        self._url = endpoint if "://" in endpoint else f"https://{endpoint}"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def get(self, path: str) -> Any:
        """Return the answer, or None if nothing exists at the path."""
        try:
            return self.send("GET", path)
        except GrafanaError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def put(self, collection: str, path: str, body: Event, **if_exists: Any) -> None:
        """Create an object, or change it if it exists.

        Args:
            collection: path to which a new object is sent.
            path: path of the object.
            body: the object.
            if_exists: additional fields for a change.
        """
        if self.get(path) is None:
            self.send("POST", collection, body)
        else:
            self.send("PUT", path, {**body, **if_exists})

    def send(self, method: str, path: str, body: Event | None = None) -> Any:
        """Send a request, and return its answer.

        Raises:
            GrafanaError: if Grafana refuses the request or does not answer.
        """
        request = urllib.request.Request(
            self._url + path,
            method=method,
            headers=self._headers,
            data=None if body is None else json.dumps(body).encode(),
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            reason = error.read(REASON_BYTES).decode(errors="replace")
            raise GrafanaError(
                f"{method} {path}: {error.code} {reason}", status=error.code
            ) from None
        except (OSError, ValueError) as error:
            # The host name cannot be resolved yet, the connection was lost, or the answer is no JSON.
            raise GrafanaError(f"{method} {path}: {error}") from None
