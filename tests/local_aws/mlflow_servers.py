"""MLflow's tracking servers, which moto has not: made only if their role reaches their bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

from moto.core.responses import ActionResult
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.responses import SageMakerResponse

from tests.local_aws.permissions import is_permitted

SERVERS: dict[str, dict[str, Any]] = {}
"""Servers by ARN."""


def create_mlflow_tracking_server(self: SageMakerResponse) -> ActionResult:
    settings = json.loads(self.body)
    name = settings["TrackingServerName"]
    role = settings["RoleArn"]
    trust = (
        iam_backends[self.current_account]["aws"].get_role_by_arn(role).assume_role_policy_document
    )
    if "sagemaker.amazonaws.com" not in trust:
        raise ValidationError(f"{role} does not trust sagemaker.amazonaws.com")
    for action, resource in _needed(self.current_account, settings["ArtifactStoreUri"]):
        if not is_permitted(self.current_account, role, action, resource):
            raise ValidationError(f"{name}: {role} may not {action} {resource}")
    arn = _arn(self, name)
    if arn in SERVERS:
        raise ValidationError(f"{arn} already exists")
    SERVERS[arn] = settings
    return ActionResult({"TrackingServerArn": arn})


def delete_mlflow_tracking_server(self: SageMakerResponse) -> ActionResult:
    arn = _arn(self, json.loads(self.body)["TrackingServerName"])
    del SERVERS[arn]
    return ActionResult({"TrackingServerArn": arn})


def _arn(response: SageMakerResponse, name: str) -> str:
    return f"arn:aws:sagemaker:{response.region}:{response.current_account}:mlflow-tracking-server/{name}"


def _needed(account_id: str, store: str) -> Iterator[tuple[str, str]]:
    bucket = s3_backends[account_id]["aws"].get_bucket(urlparse(store).netloc)
    yield "s3:ListBucket", bucket.arn
    for action in ("GetObject", "PutObject", "DeleteObject"):
        yield f"s3:{action}", f"{bucket.arn}/0/run/artifacts/model"
    rule = (bucket.encryption or {}).get("Rule", {})
    if key := rule.get("ApplyServerSideEncryptionByDefault", {}).get("KMSMasterKeyID"):
        yield "kms:Decrypt", key
        yield "kms:GenerateDataKey", key


def install() -> None:
    for function in (create_mlflow_tracking_server, delete_mlflow_tracking_server):
        setattr(SageMakerResponse, function.__name__, function)
