"""The key that a cluster file asks for is the key of everything that takes one."""

from __future__ import annotations

from typing import Any

from tests.stacks.base_templates import (
    EXISTING_KEY,
    Template,
    network_template,
    storage_template,
    strings_in,
)
from tests.stacks.found_resources import bucket

FILE_SYSTEM = "AWS::FSx::FileSystem"
BUCKET = "AWS::S3::Bucket"
KEY = "AWS::KMS::Key"


def test_flow_logs_are_encrypted_with_the_clusters_kind_of_key() -> None:
    created = network_template("slurm-p5")
    (key,) = created.resources("AWS::KMS::Key")

    assert created.only("AWS::Logs::LogGroup")["Properties"]["KmsKeyId"] == {
        "Fn::GetAtt": [key, "Arn"]
    }
    assert "logs.us-east-1.amazonaws.com" in strings_in(created.resources()[key])
    assert created.only("AWS::KMS::Key")["Properties"]["EnableKeyRotation"] is True
    assert "KmsKeyId" not in network_template("slurm").only("AWS::Logs::LogGroup")["Properties"]
    given = network_template("given-key")
    assert given.only("AWS::Logs::LogGroup")["Properties"]["KmsKeyId"] == EXISTING_KEY
    assert not given.resources("AWS::KMS::Key")


def keys_in_use(template: Template) -> list[Any]:
    """Return the key of every resource that can have one; None for the service's own."""
    return [
        *(made.get("KmsKeyId") for made in template.properties(FILE_SYSTEM)),
        *(made.get("KmsKeyId") for made in template.properties("AWS::Logs::LogGroup")),
        *(
            rule["ServerSideEncryptionByDefault"].get("KMSMasterKeyID")
            for name in ("Data", "Artifacts")
            for rule in bucket(template, name)[1]["Properties"]["BucketEncryption"][
                "ServerSideEncryptionConfiguration"
            ]
        ),
    ]


def test_one_key_encrypts_everything() -> None:
    created, given, services = (
        storage_template(name) for name in ("slurm-p5", "given-key", "slurm")
    )
    (key,) = created.resources(KEY)

    # Two file systems, two log groups, two buckets; the default cluster has one file system.
    assert keys_in_use(created) == [{"Fn::GetAtt": [key, "Arn"]}] * 6
    assert keys_in_use(given) == [EXISTING_KEY] * 6
    assert keys_in_use(services) == [None] * 5
    assert not given.resources(KEY) and not services.resources(KEY)
    for made in created.properties(BUCKET):
        (rule,) = made["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        algorithm = rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"]
        # S3 delivers access logs to buckets under its own key only.
        assert (algorithm, rule.get("BucketKeyEnabled")) in {("aws:kms", True), ("AES256", None)}


def test_the_key_lets_in_the_services_that_come_by_themselves() -> None:
    (key,) = storage_template("slurm-p5").properties(KEY)
    statements = key["KeyPolicy"]["Statement"]
    alerts = [statement for statement in statements if statement.get("Sid", "").endswith("Alerts")]
    account, logs, lustre, secrets = (
        statement for statement in statements if statement not in alerts
    )

    assert key["EnableKeyRotation"] is True
    assert account["Principal"] != {"AWS": "*"}
    assert logs["Principal"] == {"Service": "logs.us-east-1.amazonaws.com"}
    assert list(logs["Condition"]) == ["ArnLike"]
    via = {"kms:ViaService": "secretsmanager.us-east-1.amazonaws.com"}
    assert secrets["Condition"] == {"StringEquals": via}, "of the database's password"
    assert "kms:GenerateDataKey*" in lustre["Action"] and "kms:*" not in lustre["Action"]
    assert lustre["Condition"]["StringEquals"] == {
        "kms:CallerAccount": {"Ref": "AWS::AccountId"},
        "kms:ViaService": "s3.us-east-1.amazonaws.com",
    }
    (role,) = (
        text
        for text in strings_in(lustre["Condition"]["ArnLike"])
        if "AWSServiceRoleForFSxS3Access" in text
    )
    assert role.endswith(
        "/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-*"
    )
    assert {statement["Principal"]["Service"] for statement in alerts} == {
        f"{service}.amazonaws.com" for service in ("aps", "budgets", "cloudwatch", "events")
    }
    for statement in alerts:
        assert statement["Action"] == ["kms:Decrypt", "kms:GenerateDataKey*"]
