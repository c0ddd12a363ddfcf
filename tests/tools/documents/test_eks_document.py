"""docs/deploy-on-eks.md says what is so: commands and files exist, no other permissions are needed."""

from __future__ import annotations

import json
import re
from typing import Any

import botocore.session
import pytest

from tests.tools.documents.document_commands import (
    REPOSITORY,
    commands,
    unknown_options,
)
from tests.tools.documents.test_deploy_document import policy
from tests.tools.preflight.eks_accounts import P5, eks_account
from tests.tools.preflight.report import findings
from tests.tools.stacks.test_teardown_eks import CLUSTER, EksAccount
from tests.tools.stacks.test_teardown_eks import approved as approved_templates
from tools.hyperpod_api.table import REQUESTS
from tools.preflight.read_only_aws import DIFFERENTLY_NAMED

TEXT = (REPOSITORY / "docs/deploy-on-eks.md").read_text()
MODELS = botocore.session.get_session()


def actions(statement: str) -> set[str]:
    statements = json.loads((REPOSITORY / "docs/policies/deploy-eks.json").read_text())["Statement"]
    (found,) = [each["Action"] for each in statements if each["Sid"] == statement]
    return {found} if isinstance(found, str) else set(found)


def used(calls: list[tuple[str, str]]) -> set[str]:
    names = {
        f"{MODELS.get_service_model(service).signing_name}:{operation}"
        for service, operation in calls
    }
    return {DIFFERENTLY_NAMED.get(name, name) for name in names}


HIGH_LEVEL = "aws eks update-kubeconfig"
"""No operation of the service."""
AWS_COMMANDS = sorted(c for c in commands(TEXT) if c.startswith("aws ") and c != HIGH_LEVEL)


@pytest.mark.parametrize("command", AWS_COMMANDS)
def test_aws_commands_exist_with_their_options(command: str) -> None:
    assert not unknown_options(command)


def test_files_exist() -> None:
    named = set(re.findall(r"`((?:clusters|config|lifecycle|docs|constructs)/[\w./-]*)`", TEXT))
    assert len(named) >= 4
    for path in named:
        assert (REPOSITORY / path).exists(), path


@pytest.mark.usefixtures("all_checks")
def test_preflight_needs_exactly_the_permissions_that_are_listed() -> None:
    user = "arn:aws:iam::123456789012:user/ada"
    aws = eks_account(P5)
    found = {"Path": "/", "UserName": "ada", "UserId": "A" * 16, "Arn": user, "CreateDate": 0}
    aws.answer("iam", "GetUser", {"User": found})
    entries = [
        *P5.kubernetes.access,
        P5.kubernetes.access[0].model_copy(update={"principal_arn": user}),
    ]
    kubernetes = P5.kubernetes.model_copy(update={"access": entries})
    findings(aws, P5.model_copy(update={"kubernetes": kubernetes}))
    more = used(aws.calls) - policy("Preflight") - {"sts:GetCallerIdentity"}
    assert more == actions("PreflightEks")


def test_teardown_needs_no_more_than_is_listed(run_teardown: Any) -> None:
    account = EksAccount(approved_templates(keep=False))
    run_teardown(account, *CLUSTER, "--yes", "esm2-eks-p5")
    names = {
        "s3:ListObjectVersions": "s3:ListBucketVersions",
        "s3:DeleteObjects": "s3:DeleteObjectVersion",
    }
    needed = {names.get(action, action) for action in used(account.aws.calls)}
    assert needed - policy("Preflight", "Teardown") == actions("TeardownEks")


def test_move_needs_what_is_listed() -> None:
    assert actions("MoveNodes") == {"sagemaker:MoveClusterNodes"}
    assert "make move" in {entry.text for entry in REQUESTS["MoveClusterNodes"].values()}
