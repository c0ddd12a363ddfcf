"""FSx for OpenZFS: home directories."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from aws_cdk import aws_kms as kms

from config.storage import HomeFileSystem as HomeSettings
from constructs import Construct
from constructs.storage.removal import apply_to_file_system


class HomeFileSystem(Construct):
    """A highly available pair of file servers in one zone, encrypted, exported to the VPC only."""

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        settings: HomeSettings,
        vpc_cidr: str,
        subnet: ec2.ISubnet,
        security_group: ec2.ISecurityGroup,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, construct_id)
        self.capacity_gib = settings.capacity_gib
        file_system = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="OPENZFS",
            storage_type="SSD",
            storage_capacity=settings.capacity_gib,
            subnet_ids=[subnet.subnet_id],
            security_group_ids=[security_group.security_group_id],
            kms_key_id=key.key_arn if key else None,
            open_zfs_configuration=fsx.CfnFileSystem.OpenZFSConfigurationProperty(
                # A file server that restarts would stop every login and job for its while.
                deployment_type="SINGLE_AZ_HA_2",
                throughput_capacity=settings.throughput_mbps,
                automatic_backup_retention_days=settings.backup_days,
                copy_tags_to_backups=True,
                copy_tags_to_volumes=True,
                # Otherwise a file system on which someone has made a volume cannot be deleted at all.
                options=["DELETE_CHILD_VOLUMES_AND_SNAPSHOTS"] if settings.removal == "destroy" else None,
                root_volume_configuration=fsx.CfnFileSystem.RootVolumeConfigurationProperty(
                    data_compression_type="ZSTD",
                    nfs_exports=[_exports(vpc_cidr)],
                ),
            ),
        )
        apply_to_file_system(file_system, settings.removal)
        self.file_system_id = file_system.ref
        self.dns_name = file_system.attr_dns_name


def _exports(vpc_cidr: str) -> fsx.CfnFileSystem.NfsExportsProperty:
    """The root volume for the VPC's addresses.

    The range is the whole VPC's, because UpdateFileSystem cannot change exports: CloudFormation would replace
    the file system when a zone is added. What keeps other machines of the VPC out is the security group.
    Root is not squashed: the nodes' set-up makes the directories of users as root and gives them away.
    """
    return fsx.CfnFileSystem.NfsExportsProperty(
        client_configurations=[
            fsx.CfnFileSystem.ClientConfigurationsProperty(
                clients=vpc_cidr, options=["rw", "crossmnt", "no_root_squash"]
            )
        ]
    )
