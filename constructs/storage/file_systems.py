"""File systems of FSx: Lustre, its link to a bucket, and OpenZFS for home directories."""

from typing import Any

from aws_cdk import Annotations, CfnDeletionPolicy, RemovalPolicy, Stack
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from config.storage import EFA_NOT_CONFIGURED
from config.storage import HomeFileSystem as HomeSettings
from config.storage import LustreFileSystem as LustreSettings
from constructs import Construct
from constructs.policy.findings import skip_check
from constructs.storage.encryption_key import let_use
from constructs.storage.log_group import log_group
from constructs.vpc.network import Network

LUSTRE_LOG_DAYS = 90
"""Days for which failed imports and exports are kept."""


def _file_system(
    scope: Construct,
    settings: LustreSettings | HomeSettings,
    network: Network,
    key: kms.IKey | None,
    **properties: Any,
) -> fsx.CfnFileSystem:
    """Create an encrypted file system on SSD.

    The cluster file decides whether the end of the stack deletes it. A replacement never does: a changed
    subnet or deployment type creates a new, empty file system, and the old one stays with its data.

    Args:
        scope: parent construct.
        settings: section of the cluster file.
        network: network of the cluster.
        key: key of the cluster, if it has one.
        properties: properties of one kind of file system.
    """
    made = fsx.CfnFileSystem(
        scope,
        "FileSystem",
        storage_type="SSD",
        storage_capacity=settings.capacity_gib,
        subnet_ids=[network.subnet(None).subnet_id],
        security_group_ids=network.security_group_ids,
        kms_key_id=key.key_arn if key else None,
        **properties,
    )
    is_kept = settings.removal == "retain"
    made.cfn_options.deletion_policy = (
        CfnDeletionPolicy.RETAIN_EXCEPT_ON_CREATE if is_kept else CfnDeletionPolicy.DELETE
    )
    made.cfn_options.update_replace_policy = CfnDeletionPolicy.RETAIN
    return made


class LustreFileSystem(Construct):
    """Encrypted PERSISTENT_2 file system on SSD in one subnet.

    Root is not squashed: the setup of nodes creates users' directories as root, and CloudFormation has no
    property for it.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: LustreSettings,
        log_group_name: str,
        network: Network,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        self.mount_path = settings.mount_path
        self.capacity_gib = settings.capacity_gib
        if settings.lacks_efa_client:
            Annotations.of(self).add_warning_v2("hyperpod-esm2:lustre-efa", EFA_NOT_CONFIGURED)
        # FSx reports failed imports and exports only here. It accepts only groups below /aws/fsx/.
        events = log_group(
            self, "Events", key=key, retention_days=LUSTRE_LOG_DAYS, log_group_name=log_group_name
        )
        if settings.existing:
            # An existing file system still writes to the group, which its earlier stack has deleted.
            self.file_system_id = settings.existing.file_system_id
            self.dns_name = _dns_name(stack, self.file_system_id)
            self.mount_name = settings.existing.mount_name
            return
        file_system = _file_system(
            self,
            settings,
            network,
            key,
            file_system_type="LUSTRE",
            file_system_type_version="2.15",
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type="PERSISTENT_2",
                per_unit_storage_throughput=settings.throughput_mbps_per_tib,
                data_compression_type=settings.compression.upper(),
                efa_enabled=settings.efa,
                automatic_backup_retention_days=settings.backup_days,
                # Not allowed for a file system that is linked to a bucket. Such a file system has no backups.
                copy_tags_to_backups=True if settings.backup_days else None,
                log_configuration=fsx.CfnFileSystem.LogConfigurationProperty(
                    level="WARN_ERROR",
                    # The ARN of the group itself; the attribute's ARN ends with ":*" and means its streams.
                    destination=f"arn:{stack.partition}:logs:{stack.region}:{stack.account}:log-group:"
                    f"{events.ref}",
                ),
                metadata_configuration=fsx.CfnFileSystem.MetadataConfigurationProperty(
                    mode="AUTOMATIC" if settings.metadata_iops is None else "USER_PROVISIONED",
                    iops=settings.metadata_iops,
                ),
            ),
        )
        self.file_system_id = file_system.ref
        self.dns_name = file_system.attr_dns_name
        self.mount_name = file_system.attr_lustre_mount_name


def _dns_name(stack: Stack, file_system_id: str) -> str:
    """Return the DNS name of a file system in its VPC (FSx user guides, "DNS names")."""
    return f"{file_system_id}.fsx.{stack.region}.{stack.url_suffix}"


EXPORTED = ["NEW", "CHANGED", "DELETED"]
"""Events of files that FSx exports to the bucket."""
IMPORTED = ["NEW", "CHANGED"]
"""Events of objects that FSx imports.

Without DELETED, because emptying the bucket, by mistake or before a teardown, must not delete files of a file
system that the cluster file keeps. Files of deleted objects stay listed until someone removes them.
"""


class DataAssociation(Construct):
    """Data repository association of a path of the file system and a bucket.

    Objects appear as files below the path, and changes to files reach the bucket.

    FSx watches the bucket through notifications that it sets itself; notifications of the CDK would overwrite
    them. It uses the bucket through a service-linked role, which the key's policy must allow. The owner of a
    key that is given by its ARN must allow the same.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        lustre: LustreFileSystem,
        path: str,
        bucket: s3.IBucket,
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
            s3={"autoImportPolicy": {"events": IMPORTED}, "autoExportPolicy": {"events": EXPORTED}},
        )
        # Deleting it leaves the files in place: CloudFormation never sets DeleteDataInFileSystem.
        association.apply_removal_policy(removal, apply_to_update_replace_policy=False)
        # A changed path creates a new association. The old one, if kept, would continue to export.
        association.cfn_options.update_replace_policy = CfnDeletionPolicy.DELETE
        # FSx reads the bucket's policy, which must exist for the whole life of the association.
        if bucket.policy is not None:
            association.node.add_dependency(bucket.policy)
        if key is not None:
            _allow_linked_role(Stack.of(self), key)


def _allow_linked_role(stack: Stack, key: kms.IKey) -> None:
    """Allow FSx's service-linked role to use the key.

    The role is allowed by a pattern: its name contains the file system's id, which does not exist before the
    key.
    """
    role = (
        "aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_fs-*"
    )
    via_s3 = {
        "kms:CallerAccount": stack.account,
        "kms:ViaService": f"s3.{stack.region}.amazonaws.com",
    }
    arn = f"arn:{stack.partition}:iam::{stack.account}:role/{role}"
    conditions = {"ArnLike": {"aws:PrincipalArn": arn}, "StringEquals": via_s3}
    let_use(key, "LustreToS3", iam.AnyPrincipal(), conditions)
    created = key.node.default_child
    if isinstance(created, kms.CfnKey):
        skip_check(
            created,
            "CKV_AWS_33",
            "The wildcard stands for one service-linked role, which the conditions name by pattern: a"
            " principal that does not exist yet cannot be written.",
        )


class HomeFileSystem(Construct):
    """Encrypted OpenZFS file system on a highly available pair of servers in one zone.

    It is exported only to the VPC.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: HomeSettings,
        network: Network,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.capacity_gib = settings.capacity_gib
        if settings.existing:
            self.file_system_id = settings.existing
            self.dns_name = _dns_name(Stack.of(self), self.file_system_id)
            return
        # The export covers the VPC's ranges, because UpdateFileSystem cannot change exports: CloudFormation
        # would replace the file system when a zone is added. The security group excludes other machines.
        # Root is not squashed: the setup of nodes creates users' directories as root and changes their owner.
        options = ["rw", "crossmnt", "no_root_squash"]
        clients = [{"clients": cidr, "options": options} for cidr in network.ranges]
        file_system = _file_system(
            self,
            settings,
            network,
            key,
            file_system_type="OPENZFS",
            open_zfs_configuration=fsx.CfnFileSystem.OpenZFSConfigurationProperty(
                # A single file server would stop every login and job while it restarts.
                deployment_type="SINGLE_AZ_HA_2",
                throughput_capacity=settings.throughput_mbps,
                automatic_backup_retention_days=settings.backup_days,
                copy_tags_to_backups=True,
                copy_tags_to_volumes=True,
                # Without this option, a file system on which someone created a volume cannot be deleted.
                options=["DELETE_CHILD_VOLUMES_AND_SNAPSHOTS"]
                if settings.removal == "destroy"
                else None,
                root_volume_configuration=fsx.CfnFileSystem.RootVolumeConfigurationProperty(
                    data_compression_type="ZSTD",
                    nfs_exports=[{"clientConfigurations": clients}],
                ),
            ),
        )
        self.file_system_id = file_system.ref
        self.dns_name = file_system.attr_dns_name
