"""Preflight checks of an accounting database that exists."""

from __future__ import annotations

from typing import Any

import pytest

from config.slurm_cluster import AccountingDatabase, ExistingDatabase
from tests.tools.accounts import empty_account
from tests.tools.answering_aws import Refusal
from tests.tools.cluster_files import shipped
from tests.tools.preflight.report import findings

ENDPOINT = "slurm.c0ffee.us-west-2.rds.amazonaws.com"
SECRET = "arn:aws:secretsmanager:us-west-2:123456789012:secret:slurm-AbCdEf"
GROUP = "sg-0123456789abcdef0"
DATABASE = {
    "DBInstanceIdentifier": "slurm",
    "DBInstanceStatus": "available",
    "Endpoint": {"Address": ENDPOINT},
    "VpcSecurityGroups": [{"VpcSecurityGroupId": GROUP}],
}


@pytest.mark.parametrize(
    ("change", "secret", "level", "message"),
    [
        ({}, {}, "OK", "is available"),
        ({"DBInstanceStatus": "stopped"}, {}, "FAIL", "is stopped"),
        ({"VpcSecurityGroups": []}, {}, "FAIL", f"the file says {GROUP}"),
        ({"Endpoint": {"Address": "other"}}, {}, "WARN", "RDS has no database with the address"),
        ({}, Refusal("ResourceNotFoundException"), "FAIL", "does not exist"),
    ],
)
def test_a_database_is_there_and_reachable(
    change: dict[str, Any], secret: Any, level: str, message: str
) -> None:
    existing = ExistingDatabase(endpoint=ENDPOINT, secret_arn=SECRET, security_group_id=GROUP)
    cluster = shipped("slurm").model_copy(
        update={"accounting_database": AccountingDatabase(existing=existing)}
    )
    aws = empty_account(cluster)
    aws.answer("rds", "DescribeDBInstances", {"DBInstances": [DATABASE | change]})
    aws.answer("secretsmanager", "DescribeSecret", secret)
    found = [finding for finding in findings(aws, cluster) if finding.subject == "database slurm"]
    assert (level, True) in [(one.level, message in one.message) for one in found]
    assert not [one for one in findings(aws, cluster) if "DB" in one.subject]
