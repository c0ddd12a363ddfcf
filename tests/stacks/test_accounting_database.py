"""The database behind Slurm's accounting."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stacks.synthesized import load, only, read_templates, resources, synthesize, templates
from tests.stacks.variants import variant_templates

P5 = "clusters/slurm-p5.yaml"
DATABASE = "AWS::RDS::DBInstance"


def storage() -> dict[str, Any]:
    return templates(P5)["SlurmStorageStack"]


def test_database_is_closed_encrypted_and_backed_up() -> None:
    database = only(storage(), DATABASE)
    expected = {
        "PubliclyAccessible": False,
        "StorageEncrypted": True,
        "DeleteAutomatedBackups": False,
        "MultiAZ": True,
        "BackupRetentionPeriod": 7,
        "EnableCloudwatchLogsExports": ["error", "slowquery"],
        "Port": "3306",
    }
    assert {name: database[name] for name in expected} == expected
    assert "KmsKeyId" in database


def test_a_client_without_tls_can_log_in() -> None:
    """HyperPod's slurmdbd may connect without TLS; MySQL's accounts would need it in any case."""
    group = only(storage(), "AWS::RDS::DBParameterGroup")
    assert group["Parameters"]["require_secure_transport"] == "0"
    assert only(storage(), DATABASE)["Engine"] == "mariadb"


def test_a_first_creation_that_fails_leaves_no_database() -> None:
    """Deletion protection would hold it, whatever the policy says."""
    (database,) = resources(storage(), DATABASE).values()
    assert database["DeletionPolicy"] == "RetainExceptOnCreate"
    assert database["Properties"]["DeletionProtection"] is False


def test_password_is_generated_and_in_no_template() -> None:
    database = only(storage(), DATABASE)
    assert "resolve:secretsmanager" in str(database["MasterUserPassword"])
    secret = only(storage(), "AWS::SecretsManager::Secret")
    assert secret["GenerateSecretString"]["SecretStringTemplate"] == '{"username":"slurm"}'
    # slurmdbd.conf takes what follows a # for a comment.
    assert "#" in secret["GenerateSecretString"]["ExcludeCharacters"]


def test_only_the_cluster_s_group_reaches_it() -> None:
    group = only(storage(), DATABASE)["VPCSecurityGroups"]
    (rule,) = (
        rule["Properties"]
        for rule in resources(storage(), "AWS::EC2::SecurityGroupIngress").values()
        if [rule["Properties"]["GroupId"]] == group
    )
    assert (rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) == ("tcp", 3306, 3306)
    assert "NetworkSecurityGroup" in str(rule["SourceSecurityGroupId"])
    (own,) = (
        found["Properties"]
        for name, found in resources(storage(), "AWS::EC2::SecurityGroup").items()
        if [{"Fn::GetAtt": [name, "GroupId"]}] == group
    )
    assert "SecurityGroupIngress" not in own
    assert [rule["CidrIp"] for rule in own["SecurityGroupEgress"]] == ["255.255.255.255/32"]


@pytest.mark.parametrize("removal", ["retain", "destroy"])
def test_all_parts_stay_or_go_together(removal: str) -> None:
    cluster = load(P5, accounting_database={"removal": removal})
    found = read_templates(synthesize(cluster))["SlurmStorageStack"]["Resources"]
    parts = {
        name: part
        for name, part in found.items()
        if "AccountingDatabase" in name
        and part["Type"]
        not in ("AWS::EC2::SecurityGroupIngress", "AWS::SecretsManager::SecretTargetAttachment")
    }
    assert len(parts) == 5
    policy = "RetainExceptOnCreate" if removal == "retain" else "Delete"
    # A security group and a parameter group go when nothing is said.
    assert {part.get("DeletionPolicy", "Delete") for part in parts.values()} == {policy}


def test_cluster_uses_it() -> None:
    given = only(templates(P5)["SlurmHyperPodStack"], "AWS::SageMaker::Cluster")["Orchestrator"][
        "Slurm"
    ]
    assert given["AccountingDatabase"].keys() == {"Endpoint", "Name", "Port", "SecretArn"}
    # Without a name, AWS's documents give two defaults, of which one is the same for all clusters.
    assert given["AccountingDatabase"]["Name"] == "slurm_acct_esm2_p5"


EXISTING = {
    "endpoint": "slurm.c0ffee.us-east-1.rds.amazonaws.com",
    "secret_arn": "arn:aws:secretsmanager:us-east-1:123456789012:secret:slurm-AbCdEf",
    "security_group_id": "sg-0123456789abcdef0",
}


@pytest.mark.parametrize("schema", [None, "slurm_acct_db"])
def test_a_kept_database_is_used_and_not_changed(schema: str | None) -> None:
    cluster = load(P5, accounting_database={"existing": EXISTING, "schema_name": schema})
    stacks = read_templates(synthesize(cluster))
    for template in stacks.values():
        assert not [part for part in template["Resources"].values() if "::RDS::" in part["Type"]]
        assert not resources(template, "AWS::SecretsManager::Secret")
    (rule,) = (
        found
        for found in resources(
            stacks["SlurmStorageStack"], "AWS::EC2::SecurityGroupIngress"
        ).values()
        if found["Properties"]["GroupId"] == EXISTING["security_group_id"]
    )
    assert rule["Properties"]["FromPort"] == 3306
    given = only(stacks["SlurmHyperPodStack"], "AWS::SageMaker::Cluster")["Orchestrator"]["Slurm"]
    assert given["AccountingDatabase"] == {
        "Endpoint": EXISTING["endpoint"],
        "Name": schema or "slurm_acct_esm2_p5",
        "Port": 3306,
        "SecretArn": EXISTING["secret_arn"],
    }
    read = [
        statement["Resource"]
        for role in resources(stacks["SlurmHyperPodStack"], "AWS::IAM::Role").values()
        for policy in role["Properties"].get("Policies", [])
        for statement in policy["PolicyDocument"]["Statement"]
        if statement.get("Sid") == "ReadDatabaseSecret"
    ]
    assert read == [EXISTING["secret_arn"]]


def test_no_database_without_being_asked() -> None:
    for template in templates("clusters/slurm.yaml").values():
        assert not resources(template, DATABASE)
        assert not resources(template, "AWS::SecretsManager::Secret")


def test_an_existing_vpc_gives_it_two_zones() -> None:
    group = only(variant_templates("existing_vpc")["SlurmStorageStack"], "AWS::RDS::DBSubnetGroup")
    assert len(set(map(str, group["SubnetIds"]))) == 2
