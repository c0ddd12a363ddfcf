"""docs/deploy.md says what is so: commands, targets, files and permissions exist, no others are needed."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from typing import Any

import botocore.session
import pytest

from config.cluster import RollingUpdate
from tests.tools.accounts import empty_account
from tests.tools.answering_aws import Refusal
from tests.tools.cluster_files import shipped, with_group
from tests.tools.documents.document_commands import (
    REPOSITORY,
    commands,
    unknown_options,
)
from tests.tools.nodes.slurm_nodes import group, node, running_cluster
from tests.tools.nodes.test_logs import Logs
from tests.tools.preflight.report import findings
from tests.tools.preflight.test_existing_access_preflight import guest_account, guest_cluster
from tests.tools.preflight.test_existing_storage_preflight import Existing
from tests.tools.preflight.test_existing_storage_preflight import cluster as existing_cluster
from tests.tools.preflight.test_existing_vpc import Vpc
from tests.tools.preflight.test_existing_vpc import cluster as in_existing_vpc
from tests.tools.preflight.test_mirror import MIRRORED
from tests.tools.preflight.test_mirror import account as mirror_account
from tests.tools.stacks.teardown_account import Account, everything
from tools.hyperpod_api.coverage import Way
from tools.hyperpod_api.table import REQUESTS
from tools.nodes.cluster_nodes import read_cluster_nodes
from tools.nodes.lifecycle_log import find_log_group, list_streams, read_events
from tools.preflight.read_only_aws import DIFFERENTLY_NAMED

TEXT = "".join(
    (REPOSITORY / f"docs/{name}.md").read_text() for name in ("deploy", "troubleshooting")
)
MODELS = botocore.session.get_session()


@cache
def printed() -> list[str]:
    """Commands in the strings of the tools, to the end of the string, with its fields as they stand."""
    strings = []
    for path in (REPOSITORY / "tools").rglob("*.py"):
        source = path.read_text()
        for found in ast.walk(ast.parse(source)) if "aws " in source else ():
            if isinstance(found, ast.JoinedStr | ast.Constant):
                text = ast.unparse(found)
                strings += re.findall(
                    r"\baws [a-z0-9]+ [a-z-]+(?: --[a-z-]+(?: (?!--)[^\s`,;'\"]+)?)*", text
                )
    return strings


COMMANDS = [command for command in commands(TEXT) if command.startswith("aws ")]
AWS_COMMANDS = sorted(
    {command for command in [*COMMANDS, *printed()] if not command.startswith("aws command")}
)


@pytest.mark.parametrize("command", AWS_COMMANDS)
def test_aws_commands_exist_with_their_options(command: str) -> None:
    assert not unknown_options(command)


def test_there_are_aws_commands_to_check() -> None:
    assert len(COMMANDS) > 8
    assert any("delete-data-repository-association" in command for command in printed())
    assert any("delete-stack" in command for command in printed())


def test_files_exist() -> None:
    named = {path for path in re.findall(r"`((?:clusters|config|lifecycle|docs)/[\w./-]*)`", TEXT)}
    assert len(named) >= 4
    for path in named - {"clusters/mine.yaml"}:
        assert (REPOSITORY / path).exists(), path


def policy(*statements: str) -> set[str]:
    statements_of = json.loads((REPOSITORY / "docs/policies/deploy.json").read_text())["Statement"]
    found = {statement["Sid"]: statement["Action"] for statement in statements_of}
    return {action for statement in statements for action in found[statement]}


def test_preflight_needs_exactly_the_permissions_that_are_listed() -> None:
    kms = "arn:aws:kms:us-west-2:123456789012:key/01234567-89ab-cdef-0123-456789abcdef"
    slurm = shipped("slurm", storage={"kms": kms, "home": {}})
    grafana = {
        "sign_in": "identity_center",
        "admins": [
            "user/0a1b2c3d-0000-1111-2222-333344445555",
            "group/0a1b2c3d-0000-1111-2222-333344445556",
        ],
    }
    database = {
        "endpoint": "slurm.c0ffee.us-west-2.rds.amazonaws.com",
        "secret_arn": "arn:aws:secretsmanager:us-west-2:123456789012:secret:slurm-AbCdEf",
    }
    two_zones = {"vpc": "new", "availability_zone_ids": ["usw2-az2", "usw2-az1"]}
    with_database = shipped("slurm", network=two_zones, accounting_database={"existing": database})
    alerted = {"emails": ["hpc@example.com"], "grafana": grafana}
    by_identity_center = shipped("slurm-p5", observability=alerted, mlflow={"kind": "app"})
    clusters = [
        with_group(
            slurm,
            "workers",
            image_id="ami-0123456789abcdef0",
            rolling_update=RollingUpdate(max_nodes=1, rollback_alarms=["gpu-errors"]),
        ),
        shipped("slurm-p5"),
        by_identity_center,
        with_database,
    ]
    accounts = [(empty_account(cluster), cluster) for cluster in clusters]
    accounts.append((mirror_account([], images=True), MIRRORED))
    accounts.append((Vpc().account(in_existing_vpc()), in_existing_vpc()))
    accounts.append((Existing().account(existing_cluster()), existing_cluster()))
    accounts.append((guest_account(), guest_cluster()))
    metadata = {
        "KeyId": kms,
        "KeyState": "Enabled",
        "KeyUsage": "ENCRYPT_DECRYPT",
        "KeySpec": "SYMMETRIC_DEFAULT",
    }
    used = set()
    for aws, cluster in accounts:
        aws.answer("kms", "DescribeKey", {"KeyMetadata": metadata})
        aws.answer("ec2", "DescribeImages", {"Images": []})
        aws.answer("cloudwatch", "DescribeAlarms", {})
        aws.answer("secretsmanager", "DescribeSecret", {})
        instance = {"Status": "ACTIVE", "IdentityStoreId": "d-0123456789"}
        aws.answer("sso-admin", "ListInstances", {"Instances": [instance]})
        for kind in ("User", "Group"):
            aws.answer("identitystore", f"Describe{kind}", Refusal("ResourceNotFoundException"))
        findings(aws, cluster)
        for service, operation in aws.calls:
            action = f"{MODELS.get_service_model(service).signing_name}:{operation}"
            used.add(DIFFERENTLY_NAMED.get(action, action))
    # GetCallerIdentity needs no permission; make diff reads the templates.
    assert used - {"sts:GetCallerIdentity"} == policy("Preflight") - {"cloudformation:GetTemplate"}


def test_teardown_needs_no_more_than_is_listed(run_teardown: Any) -> None:
    account = Account(everything(policy="Retain"))
    run_teardown(account, "--yes", "esm2-slurm")
    names = {
        "s3:ListObjectVersions": "s3:ListBucketVersions",
        "s3:DeleteObjects": "s3:DeleteObjectVersion",
    }
    used = {
        f"{MODELS.get_service_model(s).signing_name}:{operation}"
        for s, operation in account.aws.calls
    }
    assert {names.get(action, action) for action in used} <= policy("Preflight", "Teardown")


def test_connect_needs_no_more_than_is_listed() -> None:
    aws = running_cluster(
        "esm2-slurm", [group("controller", "Controller", 1)], [node("controller", 1)]
    )
    read_cluster_nodes(aws.session.client("sagemaker"), "esm2-slurm")
    cloud = Logs(aws)
    cloud.say("controller", "i-0123456789abcdef0", "a line")
    log_group = find_log_group(aws.session.client("logs"), shipped("slurm"), "abc123def456")
    names = [stream.name for stream in list_streams(aws.session.client("logs"), log_group)]
    assert list(read_events(aws.session.client("logs"), log_group, names, since_ms=0))
    used = {f"{service}:{operation}" for service, operation in aws.calls}
    assert {"logs:FilterLogEvents", "logs:DescribeLogStreams"} <= used
    assert used | {"ssm:StartSession", "kms:GenerateDataKey"} <= policy("Preflight", "Connect")


def test_status_and_actions_need_what_is_listed() -> None:
    entries = {
        name: {entry.text for entry in own.values() if entry.way is Way.COMMAND}
        for name, own in REQUESTS.items()
    }
    activity = {
        f"sagemaker:{name}" for name, sent_by in entries.items() if "make status" in sent_by
    }
    assert activity == policy("Activity")
    by_nodes = {"make replace", "make reboot", "make health-check", "make patch"}
    assert {f"sagemaker:{name}" for name, sent in entries.items() if sent & by_nodes} == policy(
        "Nodes"
    )
