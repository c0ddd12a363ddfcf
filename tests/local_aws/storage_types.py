"""Rows for S3, FSx, KMS, databases and registries: what outlives a cluster."""

from __future__ import annotations

import json
import secrets
import string
from typing import Any

from tests.local_aws.resource_model import (
    ApiResource,
    Client,
    Context,
    Properties,
    ResourceType,
    Setting,
    client,
    deleting,
)

# CloudFormation's words for what the S3 API calls otherwise, at any depth of a bucket's properties.
S3_NAMES = {
    "Id": "ID",
    "ServerSideEncryptionConfiguration": "Rules",
    "ServerSideEncryptionByDefault": "ApplyServerSideEncryptionByDefault",
    "DestinationBucketName": "TargetBucket",
    "LogFilePrefix": "TargetPrefix",
}


def _s3_names(value: Any) -> Any:
    if isinstance(value, list):
        return [_s3_names(item) for item in value]
    if isinstance(value, dict):
        return {S3_NAMES.get(name, name): _s3_names(item) for name, item in value.items()}
    return value


def _bucket_setting(operation: str, parameter: str) -> Setting:
    return lambda s3, known, value: getattr(s3, operation)(
        Bucket=known["Ref"], **{parameter: _s3_names(value)}
    )


def _lifecycle_rule(rule: Properties) -> Properties:
    rule = {**_s3_names(rule), "Filter": {"Prefix": rule.get("Prefix", "")}}
    rule.pop("Prefix", None)
    expiration = {
        "ExpirationInDays": "Days",
        "ExpiredObjectDeleteMarker": "ExpiredObjectDeleteMarker",
    }
    stated = {expiration[name]: rule.pop(name) for name in expiration if name in rule}
    return {**rule, "Expiration": stated} if stated else rule


def _bucket(properties: Properties, context: Context) -> Properties:
    acl = properties.pop("AccessControl", "Private")
    if acl != "Private":
        raise ValueError(f"AccessControl {acl} is not modelled")
    properties["Bucket"] = properties.pop("BucketName")
    if context.region != "us-east-1":  # the API takes no location for us-east-1
        properties["CreateBucketConfiguration"] = {"LocationConstraint": context.region}
    return properties


def _kms_key(properties: Properties, _: Context) -> Properties:
    properties["Policy"] = properties.pop("KeyPolicy")
    properties["Tags"] = [
        {"TagKey": tag["Key"], "TagValue": tag["Value"]} for tag in properties.pop("Tags", [])
    ]
    return properties


def _key_rotation(kms: Client, known: dict[str, Any], enabled: bool) -> None:
    if enabled:
        kms.enable_key_rotation(KeyId=known["Ref"])


def _secret(properties: Properties, _: Context) -> Properties:
    """Make up the secret as GenerateSecretString says."""
    rule = properties.pop("GenerateSecretString")
    excluded = set(rule.get("ExcludeCharacters", ""))
    alphabet = [c for c in string.ascii_letters + string.digits if c not in excluded]
    password = "".join(secrets.choice(alphabet) for _ in range(rule.get("PasswordLength", 32)))
    document = json.loads(rule["SecretStringTemplate"]) | {rule["GenerateStringKey"]: password}
    return {**properties, "SecretString": document}


def _attachment(properties: Properties, context: Context) -> Properties:
    """Add the database's address to the secret, as the attachment does."""
    if properties["TargetType"] != "AWS::RDS::DBInstance":
        raise ValueError(f"TargetType {properties['TargetType']} is not modelled")
    rds = client("rds", context.region)
    manager = client("secretsmanager", context.region)
    database = rds.describe_db_instances(DBInstanceIdentifier=properties["TargetId"])[
        "DBInstances"
    ][0]
    held = json.loads(manager.get_secret_value(SecretId=properties["SecretId"])["SecretString"])
    address = {
        "engine": database["Engine"],
        "host": database["Endpoint"]["Address"],
        "port": database["Endpoint"]["Port"],
        "dbInstanceIdentifier": database["DBInstanceIdentifier"],
    }
    return {"SecretId": properties["SecretId"], "SecretString": held | address}


STORAGE_TYPES: dict[str, ResourceType] = {
    "AWS::S3::Bucket": ApiResource(
        "s3",
        "create_bucket",
        "Bucket",
        deleting("delete_bucket", Bucket="Ref"),
        {
            "Arn": "join('', ['arn:aws:s3:::', Ref])",
            "DomainName": "join('', [Ref, '.s3.amazonaws.com'])",
            "RegionalDomainName": "join('', [Ref, '.s3.', Region, '.amazonaws.com'])",
        },
        generated_name="BucketName",
        lower_case=True,
        prepare=_bucket,
        settings={
            "BucketEncryption": _bucket_setting(
                "put_bucket_encryption", "ServerSideEncryptionConfiguration"
            ),
            "VersioningConfiguration": _bucket_setting(
                "put_bucket_versioning", "VersioningConfiguration"
            ),
            "PublicAccessBlockConfiguration": _bucket_setting(
                "put_public_access_block", "PublicAccessBlockConfiguration"
            ),
            "OwnershipControls": _bucket_setting(
                "put_bucket_ownership_controls", "OwnershipControls"
            ),
            "LoggingConfiguration": lambda s3, known, value: s3.put_bucket_logging(
                Bucket=known["Ref"], BucketLoggingStatus={"LoggingEnabled": _s3_names(value)}
            ),
            "LifecycleConfiguration": lambda s3, known, value: (
                s3.put_bucket_lifecycle_configuration(
                    Bucket=known["Ref"],
                    LifecycleConfiguration={
                        "Rules": [_lifecycle_rule(rule) for rule in value["Rules"]]
                    },
                )
            ),
            "Tags": lambda s3, known, value: s3.put_bucket_tagging(
                Bucket=known["Ref"], Tagging={"TagSet": value}
            ),
        },
    ),
    "AWS::S3::BucketPolicy": ApiResource(
        "s3",
        "put_bucket_policy",
        "Bucket",
        deleting("delete_bucket_policy", Bucket="Bucket"),
        prepare=lambda p, _: {"Bucket": p["Bucket"], "Policy": p["PolicyDocument"]},
        update_operation="put_bucket_policy",
    ),
    "AWS::KMS::Key": ApiResource(
        "kms",
        "create_key",
        "KeyMetadata.KeyId",
        lambda kms, known: kms.schedule_key_deletion(
            KeyId=known["Ref"], PendingWindowInDays=known.get("PendingWindowInDays", 30)
        ),
        {"Arn": "KeyMetadata.Arn", "KeyId": "KeyMetadata.KeyId"},
        prepare=_kms_key,
        settings={
            "EnableKeyRotation": _key_rotation,
            "PendingWindowInDays": lambda _, known, value: known.update(PendingWindowInDays=value),
        },
    ),
    "AWS::KMS::Alias": ApiResource(
        "kms", "create_alias", "AliasName", deleting("delete_alias", AliasName="Ref")
    ),
    "AWS::FSx::FileSystem": ApiResource(
        "fsx",
        "create_file_system",
        "FileSystem.FileSystemId",
        deleting("delete_file_system", FileSystemId="Ref"),
        {
            "DNSName": "FileSystem.DNSName",
            "LustreMountName": "FileSystem.LustreConfiguration.MountName",
            "ResourceARN": "FileSystem.ResourceARN",
            "RootVolumeId": "FileSystem.OpenZFSConfiguration.RootVolumeId",
        },
    ),
    "AWS::FSx::DataRepositoryAssociation": ApiResource(
        "fsx",
        "create_data_repository_association",
        "Association.AssociationId",
        deleting("delete_data_repository_association", AssociationId="Ref"),
        {"AssociationId": "Ref", "ResourceARN": "Association.ResourceARN"},
    ),
    "AWS::RDS::DBSubnetGroup": ApiResource(
        "rds",
        "create_db_subnet_group",
        "DBSubnetGroup.DBSubnetGroupName",
        deleting("delete_db_subnet_group", DBSubnetGroupName="Ref"),
        generated_name="DBSubnetGroupName",
        lower_case=True,
    ),
    "AWS::RDS::DBParameterGroup": ApiResource(
        "rds",
        "create_db_parameter_group",
        "DBParameterGroup.DBParameterGroupName",
        deleting("delete_db_parameter_group", DBParameterGroupName="Ref"),
        generated_name="DBParameterGroupName",
        lower_case=True,
        prepare=lambda p, _: {
            ("DBParameterGroupFamily" if k == "Family" else k): v for k, v in p.items()
        },
        settings={
            "Parameters": lambda rds, known, value: rds.modify_db_parameter_group(
                DBParameterGroupName=known["Ref"],
                Parameters=[
                    {"ParameterName": k, "ParameterValue": str(v), "ApplyMethod": "pending-reboot"}
                    for k, v in value.items()
                ],
            )
        },
    ),
    "AWS::RDS::DBInstance": ApiResource(
        "rds",
        "create_db_instance",
        "DBInstance.DBInstanceIdentifier",
        lambda rds, known: rds.delete_db_instance(
            DBInstanceIdentifier=known["Ref"],
            SkipFinalSnapshot=True,
            DeleteAutomatedBackups=known.get("DeleteAutomatedBackups", True),
        ),
        {
            "Endpoint.Address": "DBInstance.Endpoint.Address",
            "Endpoint.Port": "to_string(DBInstance.Endpoint.Port)",
            "DBInstanceArn": "DBInstance.DBInstanceArn",
            "MasterUserSecret.SecretArn": "DBInstance.MasterUserSecret.SecretArn",
        },
        generated_name="DBInstanceIdentifier",
        lower_case=True,
        prepare=lambda p, _: {
            {"VPCSecurityGroups": "VpcSecurityGroupIds"}.get(name, name): value
            for name, value in p.items()
        },
        settings={
            "DeleteAutomatedBackups": lambda _, known, value: known.update(
                DeleteAutomatedBackups=value
            )
        },
    ),
    "AWS::SecretsManager::Secret": ApiResource(
        "secretsmanager",
        "create_secret",
        "ARN",
        deleting("delete_secret", SecretId="Ref"),
        {"Id": "Ref"},
        generated_name="Name",
        prepare=_secret,
    ),
    "AWS::SecretsManager::SecretTargetAttachment": ApiResource(
        "secretsmanager",
        "put_secret_value",
        "ARN",
        lambda manager, known: None,
        prepare=_attachment,
    ),
    "AWS::ECR::Repository": ApiResource(
        "ecr",
        "create_repository",
        "repository.repositoryName",
        lambda ecr, known: ecr.delete_repository(
            repositoryName=known["Ref"], force=known.get("EmptyOnDelete", False)
        ),
        {"Arn": "repository.repositoryArn", "RepositoryUri": "repository.repositoryUri"},
        generated_name="RepositoryName",
        lower_case=True,
        settings={
            "LifecyclePolicy": lambda ecr, known, value: ecr.put_lifecycle_policy(
                repositoryName=known["Ref"], lifecyclePolicyText=value["LifecyclePolicyText"]
            ),
            "RepositoryPolicyText": lambda ecr, known, value: ecr.set_repository_policy(
                repositoryName=known["Ref"], policyText=json.dumps(value)
            ),
            "EmptyOnDelete": lambda _, known, value: known.update(EmptyOnDelete=value),
        },
    ),
}
