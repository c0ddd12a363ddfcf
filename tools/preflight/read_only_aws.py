"""Read-only access to AWS for preflight."""

import json
from typing import Any

import boto3
from botocore.exceptions import ClientError

from tools.aws_session import all_items, aws_client, if_present, is_denied

READING = {"get", "list", "describe", "head", "simulate"}
DIFFERENTLY_NAMED = {
    "monitoring:DescribeAlarms": "cloudwatch:DescribeAlarms",
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListObjectsV2": "s3:ListBucket",
}
"""IAM actions of operations with another name, or of a service that signs with another one."""


class PermissionMissing(Exception):
    """The caller lacks a permission; ``action`` is the missing IAM action."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action


class ReadOnlyAws:
    """Reader of one account and region. Responses are cached, so that all checks use the same state."""

    def __init__(self, session: boto3.Session, *, profile: str | None = None) -> None:
        self._session = session
        self.profile = profile
        """Profile of the AWS configuration, for programs that open a session of their own."""
        self._clients: dict[str, Any] = {}
        self._responses: dict[tuple[str, str, str], Any] = {}

    @property
    def region(self) -> str:
        return self._session.region_name

    @property
    def account(self) -> str:
        return str(self.call("sts", "get_caller_identity")["Account"])

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Return one response.

        Raises:
            PermissionMissing: if the caller lacks the permission.
            ClientError: for any other error of AWS.
        """
        return self._read(service, operation, None, parameters)

    def find(self, service: str, operation: str, **parameters: Any) -> dict[str, Any] | None:
        """Return one response, or None if the resource does not exist; raises as ``call`` does."""
        return if_present(self.call, service, operation, **parameters)

    def items(self, service: str, operation: str, key: str, **parameters: Any) -> list[Any]:
        """Return the items under ``key`` of all pages; raises the same exceptions as ``call``."""
        return self._read(service, operation, key, parameters)

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = aws_client(self._session, service)
        return self._clients[service]

    def _read(
        self, service: str, operation: str, key: str | None, parameters: dict[str, Any]
    ) -> Any:
        assert operation.partition("_")[0] in READING, f"{service} {operation} is not a read"
        request = (service, operation, json.dumps(parameters, sort_keys=True))
        if request in self._responses:
            return self._responses[request]
        client = self.client(service)
        try:
            if key is None:
                response = getattr(client, operation)(**parameters)
            else:
                response = all_items(client, operation, key, **parameters)
        except ClientError as error:
            if is_denied(error):
                action = f"{client.meta.service_model.signing_name}:{error.operation_name}"
                raise PermissionMissing(DIFFERENTLY_NAMED.get(action, action)) from error
            raise
        self._responses[request] = response
        return response
