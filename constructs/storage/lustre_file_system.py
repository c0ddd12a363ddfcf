"""FSx for Lustre: the fast file system that every node mounts."""

from __future__ import annotations

from aws_cdk import Annotations, ArnFormat, Stack
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_kms as kms

from config.storage import EFA_NOT_CONFIGURED
from config.storage import LustreFileSystem as LustreSettings
from constructs import Construct
from constructs.storage.log_group import log_group
from constructs.storage.removal import apply_to_file_system

LOG_DAYS = 90


class LustreFileSystem(Construct):
    """A PERSISTENT_2 file system on SSD, encrypted, in one subnet.

    Root is not squashed: the nodes' own set-up makes users' directories as root, and CloudFormation has
    no property for it.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: LustreSettings,
        log_group_name: str,
        subnet: ec2.ISubnet,
        security_group: ec2.ISecurityGroup,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, construct_id)
        stack = Stack.of(self)
        self.mount_path = settings.mount_path
        self.capacity_gib = settings.capacity_gib
        if settings.efa:
            Annotations.of(self).add_warning_v2("hyperpod-esm2:lustre-efa", EFA_NOT_CONFIGURED)
        # A file that cannot be imported or exported is reported here and nowhere else. FSx accepts only
        # groups below /aws/fsx/.
        events = log_group(self, "Events", key=key, retention_days=LOG_DAYS, log_group_name=log_group_name)
        file_system = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="LUSTRE",
            file_system_type_version="2.15",
            storage_type="SSD",
            storage_capacity=settings.capacity_gib,
            subnet_ids=[subnet.subnet_id],
            security_group_ids=[security_group.security_group_id],
            kms_key_id=key.key_arn if key else None,
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type="PERSISTENT_2",
                per_unit_storage_throughput=settings.throughput_mbps_per_tib,
                data_compression_type=settings.compression.upper(),
                efa_enabled=settings.efa,
                automatic_backup_retention_days=settings.backup_days,
                # Not available for a file system that is linked to a bucket, which has no backups either.
                copy_tags_to_backups=True if settings.backup_days else None,
                log_configuration=fsx.CfnFileSystem.LogConfigurationProperty(
                    level="WARN_ERROR",
                    # The group's own ARN; the attribute's ends with ":*" and means its streams.
                    destination=stack.format_arn(
                        service="logs",
                        resource="log-group",
                        resource_name=events.ref,
                        arn_format=ArnFormat.COLON_RESOURCE_NAME,
                    ),
                ),
                metadata_configuration=fsx.CfnFileSystem.MetadataConfigurationProperty(
                    mode="AUTOMATIC" if settings.metadata_iops is None else "USER_PROVISIONED",
                    iops=settings.metadata_iops,
                ),
            ),
        )
        apply_to_file_system(file_system, settings.removal)
        self.file_system_id = file_system.ref
        self.dns_name = file_system.attr_dns_name
        self.mount_name = file_system.attr_lustre_mount_name
