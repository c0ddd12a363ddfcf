"""The link between a directory of Lustre and a bucket, in both directions."""

from __future__ import annotations

from aws_cdk import CfnDeletionPolicy, RemovalPolicy, Stack
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from constructs import Construct
from constructs.policy.findings import skip_check
from constructs.storage.encryption_key import USE_OF_KEY
from constructs.storage.lustre_file_system import LustreFileSystem

EXPORTED = ["NEW", "CHANGED", "DELETED"]
IMPORTED = ["NEW", "CHANGED"]
"""Not DELETED: a bucket that is emptied, by a slip or before a teardown, would take the files with it from a
file system that the cluster file keeps. Files of deleted objects stay listed until someone removes them."""


class DataAssociation(Construct):
    """Objects appear as files below ``path``; files that are written or deleted there are objects likewise.

    FSx watches the bucket through notifications that it sets itself: adding others with the CDK would
    overwrite them. It uses the bucket through a role of its own, which the key must let in; the owner of a
    key that is given by its ARN grants the same.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        lustre: LustreFileSystem,
        path: str,
        bucket: s3.Bucket,
        key: kms.IKey | None,
        removal: RemovalPolicy,
    ) -> None:
        super().__init__(scope, construct_id)
        association = fsx.CfnDataRepositoryAssociation(
            self,
            "Association",
            file_system_id=lustre.file_system_id,
            file_system_path=path,
            data_repository_path=f"s3://{bucket.bucket_name}",
            batch_import_meta_data_on_create=True,
            s3=fsx.CfnDataRepositoryAssociation.S3Property(
                auto_import_policy=fsx.CfnDataRepositoryAssociation.AutoImportPolicyProperty(events=IMPORTED),
                auto_export_policy=fsx.CfnDataRepositoryAssociation.AutoExportPolicyProperty(events=EXPORTED),
            ),
        )
        # Deleting it leaves the files in place: CloudFormation never asks for DeleteDataInFileSystem.
        association.apply_removal_policy(removal, apply_to_update_replace_policy=False)
        # A changed path makes a new association; kept, the old one would go on exporting.
        association.cfn_options.update_replace_policy = CfnDeletionPolicy.DELETE
        # FSx asks for the bucket's policy: it stands before the association is made and until it is gone.
        assert bucket.policy is not None
        association.node.add_dependency(bucket.policy)
        if key is not None:
            self._let_in(key)

    def _let_in(self, key: kms.IKey) -> None:
        """The service-linked role is named after the file system, which is made after its key: by pattern."""
        stack = Stack.of(self)
        role = "aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-*"
        key.add_to_resource_policy(
            iam.PolicyStatement(
                sid="LustreToS3",
                principals=[iam.AnyPrincipal()],
                actions=[*USE_OF_KEY],
                resources=["*"],
                conditions={
                    "ArnLike": {
                        "aws:PrincipalArn": f"arn:{stack.partition}:iam::{stack.account}:role/{role}",
                    },
                    "StringEquals": {
                        "kms:CallerAccount": stack.account,
                        "kms:ViaService": f"s3.{stack.region}.amazonaws.com",
                    },
                },
            )
        )
        created = key.node.default_child
        if isinstance(created, kms.CfnKey):
            skip_check(
                created,
                "CKV_AWS_33",
                "The wildcard stands for one service-linked role, which the conditions name by pattern: a"
                " principal that does not exist yet cannot be written.",
            )
