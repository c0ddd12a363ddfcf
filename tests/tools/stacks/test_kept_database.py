"""Teardown prints the section with which the next deployment uses a kept database."""

from __future__ import annotations

import re

import yaml

from config.slurm_cluster import AccountingDatabase
from tools.stacks.stack_contents import StackContents, StackResource
from tools.stacks.teardown_plan import TeardownPlan, describe_remains

SECRET = "arn:aws:secretsmanager:us-west-2:123456789012:secret:slurm-AbCdEf"
ENDPOINT = "slurm.c0ffee.us-west-2.rds.amazonaws.com"
PARTS = {
    ("AccountingDatabaseInstance0123", "AWS::RDS::DBInstance"): "slurm",
    ("AccountingDatabaseSecret0123", "AWS::SecretsManager::Secret"): SECRET,
    ("AccountingDatabaseSecurityGroup0123", "AWS::EC2::SecurityGroup"): "sg-0123456789abcdef0",
    ("OtherGroup", "AWS::EC2::SecurityGroup"): "sg-0fedcba9876543210",
}


def test_the_printed_section_is_a_valid_one() -> None:
    resources = tuple(
        StackResource(
            logical_id=logical_id,
            physical_id=physical_id,
            resource_type=kind,
            deletion_policy="Retain",
            properties={"DBInstanceClass": "db.t4g.medium"},
        )
        for (logical_id, kind), physical_id in PARTS.items()
    )
    plan = TeardownPlan(
        stacks=(StackContents("storage", "arn:stack", "CREATE_COMPLETE", resources),),
        network_held=None,
        holders=(),
        service_logs=(),
        mount_names={},
        endpoints={"slurm": ENDPOINT},
    )
    (section,) = re.findall(r"to use it again: accounting_database\.(.*)", describe_remains(plan))
    database = AccountingDatabase.model_validate(yaml.safe_load(section))
    assert database.existing
    assert database.existing.model_dump() == {
        "endpoint": ENDPOINT,
        "secret_arn": SECRET,
        "security_group_id": "sg-0123456789abcdef0",
    }
